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
	// addPatience and delPatience are how long a daemon that is away is waited for: a
	// restart takes a second or two. A DEL can be put aside instead.
	addPatience = 10 * time.Second
	delPatience = 2 * time.Second

	// Between two attempts lies firstPause and then twice as much each time, up to
	// longestPause; jitter takes up to half of it off.
	firstPause   = 10 * time.Millisecond
	longestPause = 250 * time.Millisecond

	// bootIDFile has what is different after each boot (Linux, random(4)).
	bootIDFile = "/proc/sys/kernel/random/boot_id"
	// longestBootID is more than its length, in bytes.
	longestBootID = 256
)

// serve has a request served by the daemon, and knows what to do without one.
func (p *plugin) serve(r *cniproto.Request, at cniproto.Endpoint) ([]byte, error) {
	daemon := &cniproto.Client{Socket: at.Socket}
	var result []byte
	var err error
	switch r.Verb {
	case cniproto.VerbAdd:
		result, err = p.persist(daemon, r, addPatience)
		err = tryLater(err)
	case cniproto.VerbDel:
		result, err = p.del(r, at)
	case cniproto.VerbStatus:
		result, err = daemon.Do(time.Now().Add(cniproto.Timeout(r.Verb)), r)
		if unanswered(err) {
			err = wasServing(at.Heartbeat, err)
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

// persist sends a request until it is answered, as long as the daemon is away and
// at most for patience. A request that was lost on its way is sent once more
// with the same ID: should it be what brings the daemon down, then not for ever.
func (p *plugin) persist(daemon *cniproto.Client, r *cniproto.Request, patience time.Duration) ([]byte, error) {
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
			return nil, outwaited{err, patience}
		}
		d := min(pause-rand.N(pause/2), max(patience-waited, time.Millisecond))
		p.wait(d)
		waited += d
	}
}

// outwaited is the error of a daemon that was away for all of a call's patience.
type outwaited struct {
	error

	patience time.Duration
}

// Error is part of error.
func (o outwaited) Error() string { return o.error.Error() + ", for " + seconds(o.patience) }

// Unwrap lets errors.Is find why the daemon is not there.
func (o outwaited) Unwrap() error { return o.error }

// del has a DEL served, or puts it aside for a daemon that is away: a runtime
// must be able to stop a pod while the daemon restarts, and whatever a configuration
// says of where the daemon is.
func (p *plugin) del(r *cniproto.Request, at cniproto.Endpoint) ([]byte, error) {
	result, err := p.delAt(r, at)
	elsewhere := errors.Is(err, cniproto.ErrForeign) || errors.Is(err, cniproto.ErrNoSpool)
	if usual := cniproto.DefaultEndpoint(); elsewhere && at.Socket != usual.Socket {
		result, err = p.delAt(r, usual)
	}
	if errors.Is(err, cniproto.ErrNoSpool) {
		// The daemon makes the spool before it plugs anything: in this boot it did not.
		return nil, nil
	}
	return result, err
}

// delAt is del of a daemon at one place. The error is ErrNoSpool where none ever was.
func (p *plugin) delAt(r *cniproto.Request, at cniproto.Endpoint) ([]byte, error) {
	daemon := &cniproto.Client{Socket: at.Socket}
	result, err := p.persist(daemon, r, delPatience)
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
	// A daemon that has started meanwhile may have read the spool before this
	// was in it. Once is enough: it reads the spool again when it listens.
	if result, err := daemon.Do(time.Now().Add(delPatience), r); err == nil {
		_ = cniproto.Unspool(at.Spool, *r) // a second DEL does no harm
		return result, nil
	}
	return nil, nil
}

// unanswered reports whether err says that no daemon answered.
func unanswered(err error) bool {
	return errors.Is(err, cniproto.ErrAway) || errors.Is(err, cniproto.ErrLost) || errors.Is(err, cniproto.ErrNoAnswer)
}

// tryLater makes an error of a daemon that did not answer one that tells the
// runtime to come again.
func tryLater(err error) error {
	if !unanswered(err) {
		return err
	}
	return &cniproto.Error{Code: cniproto.CodeTryAgainLater, Msg: err.Error()}
}

// wasServing decides on a STATUS that no daemon answered, because of the error
// away: nil if the daemon could serve pods a short while ago, in this boot.
func wasServing(heartbeat string, away error) error {
	unavailable := func(why string) error {
		return &cniproto.Error{
			Code: cniproto.CodeUnavailable,
			Msg:  away.Error() + ", and heartbeat " + heartbeat + " " + why,
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

// readShort reads a file, and of a longer one than a boot ID only the beginning.
func readShort(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // nothing was written
	return io.ReadAll(io.LimitReader(file, longestBootID))
}

// seconds are how the messages tell a duration.
func seconds(d time.Duration) string { return strconv.Itoa(int(d/time.Second)) + "s" }
