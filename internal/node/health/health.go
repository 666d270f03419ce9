package health

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/ovsdb"
)

const (
	// LookEvery is the time between two checks whether pods can be served.
	LookEvery = 2 * time.Second
	// BadLooks is the number of failed checks in a row before STATUS reports the failure.
	// A single failed STATUS makes the runtime set the node to NotReady, which takes its
	// pods out of Services and finally evicts them.
	BadLooks = 2
	// HeartbeatGrace is the age up to which the heartbeat of the previous daemon is
	// trusted.
	HeartbeatGrace = cniproto.HeartbeatGrace
	// HeartbeatEvery is the time between two heartbeats. It is a quarter of the age up to
	// which the plugin trusts a heartbeat, so that a few may be late.
	HeartbeatEvery = HeartbeatGrace / 4
)

// Health computes the answer to STATUS in the background, so that an answer waits for
// nothing.
type Health struct {
	// check returns nil if pods can be served at this moment, otherwise the reason.
	check func() error
	// heartbeat is the path of a file whose modification time is renewed while check
	// succeeds. Its content is bootID.
	heartbeat, bootID string

	state atomic.Pointer[state]

	// Only the goroutine of Run uses these:
	failed  int       // number of failed checks in a row
	trusted time.Time // end of the trust in the previous daemon
	beaten  time.Time // time of the last heartbeat
}

// state has the result of the last check, and the answer to STATUS, which also depends on
// earlier checks. nil means that pods can be served.
type state struct{ seen, answer error }

// New returns a Health. check returns nil if pods can be served, otherwise the reason.
// heartbeat is the path of a file whose modification time is renewed while check succeeds;
// its content is bootID.
func New(check func() error, heartbeat, bootID string) *Health {
	h := &Health{check: check, heartbeat: heartbeat, bootID: bootID}
	first := fault.Errorf(fault.ErrNotServing, "fairlead-node is starting")
	h.state.Store(&state{seen: first, answer: first})
	return h
}

// Answer returns the answer to STATUS, nil if pods can be served.
func (h *Health) Answer() error { return h.state.Load().answer }

// Seen returns the result of the last check, nil if pods can be served.
func (h *Health) Seen() error { return h.state.Load().seen }

// Begin makes the first check. If the heartbeat of the previous daemon is of this boot and
// not older than HeartbeatGrace, the answer is nil even if the check fails: an upgrade must
// not make the node unready while this daemon still reads its state.
func (h *Health) Begin() {
	h.trusted = lastBeat(h.heartbeat, h.bootID).Add(HeartbeatGrace)
	err := h.check()
	if time.Now().Before(h.trusted) {
		h.state.Store(&state{seen: err})
		return
	}
	h.state.Store(&state{seen: err, answer: err})
}

// Note updates the answer from the result of a check. A success counts at once. A failure
// counts after BadLooks failed checks in a row, and not while the previous daemon is
// trusted. clock is true for a check at the regular time. Only such checks are counted: a
// check after an event does not show that a failure lasts.
func (h *Health) Note(seen error, clock bool) {
	answer := h.state.Load().answer
	switch {
	case seen == nil:
		h.failed, answer = 0, nil
	case clock:
		h.failed++
	}
	if seen != nil && (answer != nil || h.failed >= BadLooks && !time.Now().Before(h.trusted)) {
		answer = seen
	}
	h.state.Store(&state{seen: seen, answer: answer})
}

// Run makes a check every LookEvery, and when the channel that changed returned is closed,
// until ctx ends. changed is called before each check; it may return nil.
func (h *Health) Run(ctx context.Context, changed func() <-chan struct{}) {
	log := logr.FromContextOrDiscard(ctx)
	tick := time.NewTicker(LookEvery)
	defer tick.Stop()
	clock := false
	for {
		event := changed()
		before := h.state.Load().answer
		h.Note(h.check(), clock)
		now := h.state.Load()
		if (before == nil) != (now.answer == nil) {
			log.Info("STATUS changed", "canServe", now.answer == nil, "reason", text(now.answer))
		}
		if now.seen == nil && time.Since(h.beaten) >= HeartbeatEvery {
			h.beaten = time.Now()
			if err := beat(h.heartbeat, h.bootID); err != nil {
				log.Error(err, "heartbeat was not written")
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			clock = true
		case <-event:
			clock = false
		}
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// lastBeat returns the time of the last heartbeat in this boot. It returns the zero time if
// that is not known, as after the clock was set back.
func lastBeat(path, bootID string) time.Time {
	info, err := os.Stat(path)
	if err != nil || info.ModTime().After(time.Now()) {
		return time.Time{}
	}
	if content, err := os.ReadFile(path); err != nil || string(content) != bootID {
		return time.Time{}
	}
	return info.ModTime()
}

// beat renews the modification time of a file that has the content, and otherwise writes
// it. A file with the right content is never empty in between.
func beat(path, content string) error {
	if old, err := os.ReadFile(path); err == nil && string(old) == content {
		now := time.Now()
		return os.Chtimes(path, now, now)
	}
	return os.WriteFile(path, []byte(content), 0o600)
}

const (
	// BrokenPods is the number of different pods that must fail, without a success among
	// them, for a binding to count as broken. Kuryr counted the failures of one pod, never
	// reset the count, and restarted again and again.
	BrokenPods = 3
	// BrokenFor is the time since the first of these failures that must have passed.
	BrokenFor = time.Minute
)

// Bindings detects kinds of binding that are broken. The zero value is ready for use.
type Bindings struct {
	mu      sync.Mutex
	failing map[string]*failures
}

// failures are the failures of one kind since its last success.
type failures struct {
	since time.Time
	pods  map[types.UID]struct{} // at most BrokenPods
	last  error
}

// restartHelps are the errors of the kernel that a restart of the daemon may end. Any other is the
// kernel's answer to a value, which pods and networks choose.
var restartHelps = []error{unix.EBADF, unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ENOTSOCK, unix.EPIPE, unix.EIO}

// Note counts an attempt to plug an interface of a pod, with its error, nil for success.
// It ignores errors that a restart of the daemon does not end: those that a pod or a network
// causes, those of executed plugins and those of Open vSwitch.
func (b *Bindings) Note(kind string, pod types.UID, err error) {
	for _, theirs := range []error{
		fault.ErrInvalid, link.ErrInvalid, link.ErrExists, link.ErrNoParent, link.ErrNoBridge, link.ErrNotNamespace, ovsdb.ErrUnavailable, ovsdb.ErrRefused, context.Canceled, context.DeadlineExceeded, fault.ErrPlugin,
	} {
		if errors.Is(err, theirs) {
			return
		}
	}
	if _, refused := errors.AsType[unix.Errno](err); refused && !slices.ContainsFunc(restartHelps, func(is error) bool { return errors.Is(err, is) }) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		delete(b.failing, kind)
		return
	}
	f := b.failing[kind]
	if f == nil {
		f = &failures{since: time.Now(), pods: map[types.UID]struct{}{}}
		if b.failing == nil {
			b.failing = map[string]*failures{}
		}
		b.failing[kind] = f
	}
	if len(f.pods) < BrokenPods {
		f.pods[pod] = struct{}{}
	}
	f.last = err
}

// Check returns an error, with the last failure, if a kind of binding is broken.
func (b *Bindings) Check(kind string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.failing[kind]
	if f == nil || len(f.pods) < BrokenPods || time.Since(f.since) < BrokenFor {
		return nil
	}
	return fmt.Errorf("binding %s: no pod could be plugged for %s, the last because: %w", kind, time.Since(f.since).Round(time.Second), f.last)
}
