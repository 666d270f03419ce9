package ui

import (
	"bytes"
	"encoding/json"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/internal/cli/kube"
)

const (
	// batch is the time in which changes are collected for one message.
	batch = 200 * time.Millisecond
	// coolEvery is the time between two looks at addresses that cool.
	coolEvery = time.Second
	// rowsPerMessage bounds one message, so that the page draws between two of them.
	rowsPerMessage = 250
	// queued is the number of messages that may wait for one page.
	queued = 64
)

// Stream keeps a model up to date, and sends the changes to the pages. It implements
// kube.Sink. Without a page it only collects.
type Stream struct {
	mu    sync.Mutex
	model *Model
	pages map[chan []byte]bool
	timer *time.Timer
	due   time.Time // of the timer; zero if it does not run
}

// NewStream returns a stream of a model, which belongs to the stream from then on.
func NewStream(m *Model) *Stream { return &Stream{model: m, pages: map[chan []byte]bool{}} }

// Put implements kube.Sink.
func (s *Stream) Put(r kube.Resource, o client.Object) { s.change(func() { s.model.Put(r, o) }) }

// Remove implements kube.Sink.
func (s *Stream) Remove(r kube.Resource, o client.Object) { s.change(func() { s.model.Remove(r, o) }) }

// Replace implements kube.Sink.
func (s *Stream) Replace(r kube.Resource, all []client.Object) {
	s.change(func() { s.model.Replace(r, all) })
}

// Refused implements kube.Sink.
func (s *Stream) Refused(r kube.Resource, err error) { s.change(func() { s.model.Refused(r, err) }) }

func (s *Stream) change(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
	if len(s.pages) > 0 {
		s.wake(batch)
	}
}

// wake has flush run after d, or sooner if it is due sooner. mu must be held.
func (s *Stream) wake(d time.Duration) {
	at := time.Now().Add(d)
	switch {
	case !s.due.IsZero() && !at.Before(s.due):
		return
	case s.timer == nil:
		s.timer = time.AfterFunc(d, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.due = time.Time{}
			s.flush()
		})
	default:
		s.timer.Reset(d)
	}
	s.due = at
}

// flush sends the changes to all pages. A page that does not keep up is dropped: its browser
// connects again. mu must be held.
func (s *Stream) flush() {
	if len(s.pages) == 0 {
		return
	}
	changes, later := s.model.Changes(time.Now())
	for _, m := range messages(changes) {
		for page := range s.pages {
			select {
			case page <- m:
			default:
				delete(s.pages, page)
				close(page)
			}
		}
	}
	if later {
		s.wake(coolEvery)
	}
}

// Open returns all rows as messages, and the messages that follow. The channel is closed if
// the page does not keep up. The page calls end when it is gone.
func (s *Stream) Open() (all [][]byte, following <-chan []byte, end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	page := make(chan []byte, queued)
	if len(s.pages) > 0 {
		s.flush()
	} else {
		s.model.Changes(time.Now())
	}
	s.pages[page] = true
	s.wake(coolEvery)
	return messages(s.model.All()), page, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.pages, page)
	}
}

// Unread returns the resources that were neither read nor refused until now.
func (s *Stream) Unread() []kube.Resource {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.model.Unread()
}

// Story returns the story of a pod, nil if there is neither a pod nor a record.
func (s *Stream) Story(namespace, name string) *Story {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.model.Story(namespace, name, time.Now())
}

// messages returns changes as server-sent events.
func messages(changes []Change) [][]byte {
	var out [][]byte
	for len(changes) > 0 {
		n := min(len(changes), rowsPerMessage)
		out = append(out, message("rows", changes[:n]))
		changes = changes[n:]
	}
	return out
}

// message returns a server-sent event. JSON has no line breaks.
func message(event string, data any) []byte {
	var b bytes.Buffer
	b.WriteString("event: " + event + "\ndata: ")
	text, err := json.Marshal(data)
	if err != nil { // rows are JSON already
		text = []byte("null")
	}
	b.Write(text)
	b.WriteString("\n\n")
	return b.Bytes()
}
