package health

import (
	"context"
	"os"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/node/fault"
)

const (
	// LookEvery lies between two looks at whether pods can be served.
	LookEvery = 2 * time.Second
	// BadLooks is how many looks in a row have to be bad before STATUS says so. A
	// runtime makes the node unready for a single bad answer, which takes its pods
	// out of Services and in the end evicts them.
	BadLooks = 2
	// HeartbeatGrace is for how long the daemon before is believed.
	HeartbeatGrace = cniproto.HeartbeatGrace
	// HeartbeatEvery is a quarter of what the plugin takes for young at most, so
	// that a few beats may be late.
	HeartbeatEvery = HeartbeatGrace / 4
)

// Health is what STATUS answers. It is kept up to date in the background, so that
// an answer waits for nothing.
type Health struct {
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

// New returns a Health that looks with look, and keeps the file heartbeat young while
// pods can be served.
func New(look func() error, heartbeat, bootID string) *Health {
	h := &Health{look: look, heartbeat: heartbeat, bootID: bootID}
	first := fault.Errorf(fault.ErrUnavailable, "fairlead-node is starting")
	h.told.Store(&opinion{seen: first, answer: first})
	return h
}

// Answer is what STATUS says, nil when pods can be served.
func (h *Health) Answer() error { return h.told.Load().answer }

// Seen is what was seen last.
func (h *Health) Seen() error { return h.told.Load().seen }

// Begin looks for the first time. When the daemon before could serve pods a short
// while ago, in this boot, an upgrade must not make the node unready before this
// one has read what it needs.
func (h *Health) Begin() {
	h.trusted = lastBeat(h.heartbeat, h.bootID).Add(HeartbeatGrace)
	err := h.look()
	if time.Now().Before(h.trusted) {
		h.told.Store(&opinion{seen: err})
		return
	}
	h.told.Store(&opinion{seen: err, answer: err})
}

// Note takes in what was seen. Good news count at once, bad ones when they were
// seen at several looks of the clock: what happened in between was an event, which
// tells nothing of how long it lasts.
func (h *Health) Note(seen error, clock bool) {
	answer := h.told.Load().answer
	switch {
	case seen == nil:
		h.bad, answer = 0, nil
	case clock:
		h.bad++
	}
	if seen != nil && (answer != nil || h.bad >= BadLooks && !time.Now().Before(h.trusted)) {
		answer = seen
	}
	h.told.Store(&opinion{seen: seen, answer: answer})
}

// Run looks at every tick, and when changed says that there may be better news,
// until ctx ends. changed returns a channel that is closed then, nil for never.
func (h *Health) Run(ctx context.Context, changed func() <-chan struct{}) {
	log := logr.FromContextOrDiscard(ctx)
	tick := time.NewTicker(LookEvery)
	defer tick.Stop()
	clock := false
	for {
		news := changed()
		before := h.told.Load().answer
		h.Note(h.look(), clock)
		now := h.told.Load()
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
