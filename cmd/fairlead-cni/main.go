// Command fairlead-cni is the CNI plugin that a container runtime executes. It copies one
// request to the node daemon's socket and one answer back. If no daemon answers a DEL, it
// writes the DEL to a spool.
//
// A test limits the packages that it links, because a runtime waits for its start.
package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path"
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

func main() {
	p := plugin{
		name: path.Base(os.Args[0]), getenv: os.Getenv,
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr,
		wait: time.Sleep, //nolint:forbidigo // the plugin has no event for the return of the daemon
	}
	os.Exit(p.run())
}

// plugin is one call of the plugin, with its environment.
type plugin struct {
	// name is the program name under which the plugin was executed.
	name           string
	getenv         func(string) string
	stdin          io.Reader
	stdout, stderr io.Writer
	// wait sleeps between two attempts to reach the daemon.
	wait func(time.Duration)
}

// run serves the call and returns the exit status: 0, or 1 for an error. It writes only the
// result or a CNI error object to stdout. It writes to stderr only if stdout cannot be
// written.
func (p *plugin) run() int {
	out, err := p.answer()
	status := 0
	if err != nil {
		out, status = cniproto.AsError(err).Encode(), 1
	}
	if len(out) == 0 {
		return status
	}
	if _, err := p.stdout.Write(out); err != nil {
		_, _ = fmt.Fprintf(p.stderr, "fairlead-cni: the answer cannot be written: %v: %s\n", err, out)
		return 1
	}
	return status
}

// answer parses and serves the call. Only ADD and VERSION have a result that is not empty.
// Errors are *cniproto.Error.
func (p *plugin) answer() (result []byte, err error) {
	if p.getenv("CNI_COMMAND") == cniproto.VerbVersion {
		return cniproto.AnswerVersion(p.stdin) // needs no daemon
	}
	var r cniproto.Request
	at, err := r.Parse(cniproto.Call{Program: p.name, Getenv: p.getenv, Stdin: p.stdin})
	if err == nil {
		result, err = p.serve(&r, at)
	}
	if err == nil {
		return result, nil
	}
	e := *cniproto.AsError(err)
	e.CNIVersion = cmp.Or(e.CNIVersion, r.CNIVersion())
	return nil, &e
}

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
			return nil, fmt.Errorf("%w, for %s", err, seconds(patience))
		}
		d := min(pause-rand.N(pause/2), max(patience-waited, time.Millisecond))
		p.wait(d)
		waited += d
	}
}

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
			Msg:  fmt.Sprintf("%v, and the DEL cannot be put aside in %s: %v", err, at.Spool, e),
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

// unanswered reports whether err means that no daemon of this protocol answered.
func unanswered(err error) bool {
	return errors.Is(err, cniproto.ErrAway) || errors.Is(err, cniproto.ErrLost) || errors.Is(err, cniproto.ErrNoAnswer) || errors.Is(err, cniproto.ErrVersion)
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
	unavailable := func(format string, a ...any) error {
		return &cniproto.Error{
			Code: cniproto.CodeUnavailable,
			Msg:  fmt.Sprintf("%v, and heartbeat %s "+format, append([]any{away, heartbeat}, a...)...),
		}
	}
	info, err := os.Stat(heartbeat)
	if err != nil {
		return unavailable("cannot be read: %v", err)
	}
	if age := time.Since(info.ModTime()); age > cniproto.HeartbeatGrace {
		return unavailable("is %s old, more than %s", seconds(age), seconds(cniproto.HeartbeatGrace))
	} else if age < -cniproto.HeartbeatGrace { // the clock was set back: its age is not known
		return unavailable("is %s ahead of the clock", seconds(-age))
	}
	written, err := readShort(heartbeat)
	if err != nil {
		return unavailable("cannot be read: %v", err)
	}
	current, err := readShort(bootIDFile)
	if err != nil {
		return unavailable("cannot be compared: %v", err)
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
func seconds(d time.Duration) string { return fmt.Sprintf("%ds", d/time.Second) }
