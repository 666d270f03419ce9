package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev"
)

const (
	// lookEvery lies between two looks at whether pods can be served.
	lookEvery = 2 * time.Second
	// badLooks is how many looks in a row have to be bad before STATUS says so. A
	// runtime makes the node unready for a single bad answer, which takes its pods
	// out of Services and in the end evicts them.
	badLooks       = 2
	heartbeatGrace = cniproto.HeartbeatGraceMS * time.Millisecond
	// heartbeatEvery is a quarter of what the plugin takes for young at most, so
	// that a few beats may be late.
	heartbeatEvery = heartbeatGrace / 4
)

// health is what STATUS answers. It is kept up to date in the background, so that
// an answer waits for nothing.
type health struct {
	// look says whether pods can be served at this moment.
	look func() error
	// heartbeat is the file that is kept young while they can. It has bootID in it.
	heartbeat, bootID string

	told atomic.Pointer[opinion]

	// Of Run alone:
	bad     int       // looks in a row
	trusted time.Time // until when the daemon before is believed
	beaten  time.Time
}

// opinion is what was seen last, and what is answered because of it and of what
// was seen before. nil means that pods can be served.
type opinion struct{ seen, answer error }

func newHealth(look func() error, heartbeat, bootID string) *health {
	h := &health{look: look, heartbeat: heartbeat, bootID: bootID}
	first := because(errUnavailable, "fairlead-node is starting")
	h.told.Store(&opinion{seen: first, answer: first})
	return h
}

// begin looks for the first time. When the daemon before could serve pods a short
// while ago, in this boot, an upgrade must not make the node unready before this
// one has read what it needs.
func (h *health) begin() {
	h.trusted = lastBeat(h.heartbeat, h.bootID).Add(heartbeatGrace)
	err := h.look()
	if time.Now().Before(h.trusted) {
		h.told.Store(&opinion{seen: err})
		return
	}
	h.told.Store(&opinion{seen: err, answer: err})
}

// note takes in what was seen. Good news count at once, bad ones when they were
// seen at several looks of the clock: what happened in between was an event, which
// tells nothing of how long it lasts.
func (h *health) note(seen error, clock bool) {
	answer := h.told.Load().answer
	switch {
	case seen == nil:
		h.bad, answer = 0, nil
	case clock:
		h.bad++
	}
	if seen != nil && (answer != nil || h.bad >= badLooks && !time.Now().Before(h.trusted)) {
		answer = seen
	}
	h.told.Store(&opinion{seen: seen, answer: answer})
}

// run looks at every tick, and when changed says that there may be better news,
// until ctx ends. changed returns a channel that is closed then, nil for never.
func (h *health) run(ctx context.Context, changed func() <-chan struct{}) {
	log := logr.FromContextOrDiscard(ctx)
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	clock := false
	for {
		news := changed()
		before := h.told.Load().answer
		h.note(h.look(), clock)
		now := h.told.Load()
		if (before == nil) != (now.answer == nil) {
			log.Info("STATUS changed", "canServe", now.answer == nil, "reason", text(now.answer))
		}
		if now.seen == nil && time.Since(h.beaten) >= heartbeatEvery {
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
		case <-news:
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

// lastBeat is when the heartbeat was written for the last time in this boot. It
// is the zero time when nobody knows, as after the clock was set back.
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

// beat makes a file young, and its content right, without a moment in which it
// is empty.
func beat(path, content string) error {
	if old, err := os.ReadFile(path); err == nil && string(old) == content {
		now := time.Now()
		return os.Chtimes(path, now, now)
	}
	return os.WriteFile(path, []byte(content), 0o600)
}

// status says whether an ADD can be served, without looking.
func (v *verbs) status() error { return v.health.told.Load().answer }

// look says whether an ADD can be served: errUnavailable, or errImpaired when the
// pods that are there have lost their network.
func (v *verbs) look() error {
	if !v.registry.isSynced() {
		return because(errUnavailable, "node %s has not read its PodAttachments from the API server yet", v.node)
	}
	if err := v.host.ready(); err != nil {
		return because(errUnavailable, "node %s: %w", v.node, err)
	}
	if err := v.firewall.keeper.Ready(); err != nil {
		return because(errUnavailable, "node %s: the packet filter is not in place: %w", v.node, err)
	}
	if err := v.host.lost(); err != nil {
		kind := errUnavailable
		if v.ledger.count() > 0 {
			kind = errImpaired
		}
		return because(kind, "node %s: %w", v.node, err)
	}
	return nil
}

// keepHealth keeps what STATUS answers.
func (v *verbs) keepHealth(ctx context.Context) error {
	synced := v.registry.ready
	v.health.run(ctx, func() <-chan struct{} {
		select {
		case <-synced: // once
			news := v.firewall.keeper.Changes()
			if v.host.ready() == nil && v.firewall.keeper.Ready() != nil {
				return news
			}
			return v.host.changes()
		default:
			return synced
		}
	})
	return nil
}

// changes is closed when the default network has come further.
func (h *hostNet) changes() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}

// lost says that the bridge or the uplink is gone or down, which was there.
func (h *hostNet) lost() error {
	h.mu.Lock()
	links := []struct{ what, name string }{{"bridge", h.bridge}, {"uplink", h.link}}
	h.mu.Unlock()
	for _, l := range links {
		if l.name == "" {
			continue
		}
		state, err := h.kernel.LinkState(l.name)
		switch {
		case errors.Is(err, netdev.ErrNoLink):
			return fmt.Errorf("the default network has lost its %s %s", l.what, l.name)
		case err != nil:
			return err
		case !state.Up:
			return fmt.Errorf("the %s %s of the default network is down", l.what, l.name)
		}
	}
	return nil
}
