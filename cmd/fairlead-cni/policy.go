package main

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"fairlead.dev/fairlead/internal/cniproto"
)

const (
	// addPatience and delPatience are the longest waits for a daemon that is away. A
	// restart takes a second or two, but an upgrade may pull an image. An ADD waits as long
	// as a STATUS succeeds without a daemon: until then the node is ready, and gets pods.
	// The wait of a DEL is shorter, because a DEL can be spooled instead.
	addPatience = cniproto.HeartbeatGrace
	delPatience = 2 * time.Second

	// The pause between two attempts is firstPause, then doubles each time up to
	// longestPause. Jitter reduces each pause by up to half.
	firstPause   = 10 * time.Millisecond
	longestPause = 250 * time.Millisecond

	// bootIDFile has an ID that is different after each boot (Linux, random(4)).
	bootIDFile = "/proc/sys/kernel/random/boot_id"
	// longestBootID is more than the length of a boot ID, in bytes.
	longestBootID = 256
)

// serve sends a request to the daemon. If no daemon answers, the verb decides: ADD, CHECK
// and GC fail with CodeTryAgainLater, DEL is spooled, and STATUS depends on the heartbeat.
func (p *plugin) serve(r *cniproto.Request, at cniproto.Endpoint) ([]byte, error) {
	daemon := &cniproto.Client{Socket: at.Socket}
	var result []byte
	var err error
	switch r.Verb {
	case cniproto.VerbAdd:
		result, err = p.retry(daemon, r, addPatience)
		err = tryLater(err)
	case cniproto.VerbDel:
		result, err = p.del(r, at)
	case cniproto.VerbStatus:
		result, err = daemon.Do(time.Now().Add(cniproto.Timeout(r.Verb)), r)
		if unanswered(err) {
			err = checkHeartbeat(at.Heartbeat, err)
		}
	default:
		result, err = daemon.Do(time.Now().Add(cniproto.Timeout(r.Verb)), r)
		err = tryLater(err)
	}
	if errors.Is(err, cniproto.ErrForeign) {
		err = &cniproto.Error{Code: cniproto.CodeInvalidConfig, Msg: err.Error()}
	}
	return result, err
}

// retry sends a request and repeats it while the daemon is away, with pauses of at most
// patience in total. After ErrLost it sends the request once more, with the same ID, and
// only once: the request itself may be the reason why the daemon fails.
func (p *plugin) retry(daemon *cniproto.Client, r *cniproto.Request, patience time.Duration) ([]byte, error) {
	deadline := time.Now().Add(cniproto.Timeout(r.Verb))
	var waited time.Duration
	lost := false
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		result, err := daemon.Do(deadline, r)
		switch {
		case errors.Is(err, cniproto.ErrLost) && !lost:
			lost = true
		case !errors.Is(err, cniproto.ErrAway):
			return result, err
		case waited >= patience:
			return nil, awayError{err, patience}
		}
		d := min(pause-rand.N(pause/2), max(patience-waited, time.Millisecond))
		p.wait(d)
		waited += d
	}
}

// awayError is the error of a daemon that stayed away for the whole patience of a call.
type awayError struct {
	error

	patience time.Duration
}

// Error returns the text of the error with the duration.
func (a awayError) Error() string { return a.error.Error() + ", for " + seconds(a.patience) }

// Unwrap returns the error of the last attempt.
func (a awayError) Unwrap() error { return a.error }

// del sends a DEL to the daemon, or spools it if the daemon is away: a runtime must be able
// to stop a pod while the daemon restarts. If the configured socket is not a daemon's or
// has no spool beside it, del uses the default endpoint, because a wrong configuration must
// not prevent the end of a pod.
func (p *plugin) del(r *cniproto.Request, at cniproto.Endpoint) ([]byte, error) {
	result, err := p.delAt(r, at)
	noDaemon := errors.Is(err, cniproto.ErrForeign) || errors.Is(err, cniproto.ErrNoSpool)
	if byDefault := cniproto.DefaultEndpoint(); noDaemon && at.Socket != byDefault.Socket {
		result, err = p.delAt(r, byDefault)
	}
	if errors.Is(err, cniproto.ErrNoSpool) {
		// The daemon creates the spool before it plugs any interface. Without a spool, no
		// interface has been plugged in this boot.
		return nil, nil
	}
	return result, err
}

// delAt sends a DEL to the daemon of one endpoint, or spools it there. Errors: ErrNoSpool if
// the endpoint has no spool, because it never had a daemon in this boot; ErrForeign;
// otherwise *Error.
func (p *plugin) delAt(r *cniproto.Request, at cniproto.Endpoint) ([]byte, error) {
	daemon := &cniproto.Client{Socket: at.Socket}
	result, err := p.retry(daemon, r, delPatience)
	if !errors.Is(err, cniproto.ErrAway) && !errors.Is(err, cniproto.ErrLost) {
		return result, tryLater(err)
	}
	if e := cniproto.SpoolDel(at.Spool, *r); errors.Is(e, cniproto.ErrNoSpool) {
		return nil, e
	} else if e != nil {
		return nil, &cniproto.Error{
			Code: cniproto.CodeTryAgainLater,
			Msg:  err.Error() + ", and the DEL cannot be put aside in " + at.Spool + ": " + e.Error(),
		}
	}
	// A daemon that has started meanwhile may have read the spool before this DEL was in
	// it. One more attempt is enough: once it listens, the daemon reads the spool again
	// every minute.
	if result, err := daemon.Do(time.Now().Add(delPatience), r); err == nil {
		_ = cniproto.Unspool(at.Spool, *r) // a second DEL does no harm
		return result, nil
	}
	return nil, nil
}

// unanswered reports whether err means that no daemon answered.
func unanswered(err error) bool {
	return errors.Is(err, cniproto.ErrAway) || errors.Is(err, cniproto.ErrLost) || errors.Is(err, cniproto.ErrNoAnswer)
}

// tryLater returns an *Error with CodeTryAgainLater if err means that no daemon answered,
// otherwise err.
func tryLater(err error) error {
	if !unanswered(err) {
		return err
	}
	return &cniproto.Error{Code: cniproto.CodeTryAgainLater, Msg: err.Error()}
}

// checkHeartbeat returns the outcome of a STATUS that no daemon answered: nil if the
// heartbeat is from this boot and not older than HeartbeatGrace, otherwise an *Error with
// CodeUnavailable. away is the error of the attempt to reach the daemon.
func checkHeartbeat(heartbeat string, away error) error {
	unavailable := func(reason string) error {
		return &cniproto.Error{
			Code: cniproto.CodeUnavailable,
			Msg:  away.Error() + ", and heartbeat " + heartbeat + " " + reason,
		}
	}
	info, err := os.Stat(heartbeat)
	if err != nil {
		return unavailable("cannot be read: " + err.Error())
	}
	if age := time.Since(info.ModTime()); age > cniproto.HeartbeatGrace {
		return unavailable("is " + seconds(age) + " old, more than " + seconds(cniproto.HeartbeatGrace))
	}
	written, err := readShort(heartbeat)
	if err != nil {
		return unavailable("cannot be read: " + err.Error())
	}
	current, err := readShort(bootIDFile)
	if err != nil {
		return unavailable("cannot be compared: " + err.Error())
	}
	if !bytes.Equal(bytes.TrimSpace(written), bytes.TrimSpace(current)) {
		return unavailable("is of another boot")
	}
	return nil
}

// readShort reads the first longestBootID bytes of a file.
func readShort(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // nothing was written
	return io.ReadAll(io.LimitReader(file, longestBootID))
}

// seconds formats a duration for a message, in whole seconds.
func seconds(d time.Duration) string { return strconv.Itoa(int(d/time.Second)) + "s" }
