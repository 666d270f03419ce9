package cloud

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// turn is an answer of the cloud.
type turn struct {
	status             int
	after, contentType string
}

// answers is a round tripper that gives answers in turn, and then 200.
type answers struct {
	mu    sync.Mutex
	turns []turn
	times []time.Time
}

func (a *answers) RoundTrip(*http.Request) (*http.Response, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.times = append(a.times, time.Now())
	next := turn{status: http.StatusOK}
	if len(a.turns) > 0 {
		next, a.turns = a.turns[0], a.turns[1:]
	}
	r := &http.Response{StatusCode: next.status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(""))}
	if next.after != "" {
		r.Header.Set("Retry-After", next.after)
	}
	r.Header.Set("Content-Type", next.contentType)
	return r, nil
}

// pass sends a request through a gate.
func pass(t *testing.T, g *gate, ctx context.Context) error {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://cloud", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := g.RoundTrip(r)
	if err == nil {
		_ = resp.Body.Close()
	}
	return err
}

func TestGate(t *testing.T) {
	for name, test := range map[string]struct {
		turns []turn
		want  []time.Duration // since the start
	}{
		"no deferral":              {nil, []time.Duration{0, 0}},
		"429 with Retry-After":     {[]turn{{429, "7", ""}}, []time.Duration{0, 7 * time.Second}},
		"503 with Retry-After":     {[]turn{{503, "3", "application/json"}}, []time.Duration{0, 3 * time.Second}},
		"503 of a proxy":           {[]turn{{503, "", "text/html"}}, []time.Duration{0, time.Second}},
		"503 about one object":     {[]turn{{503, "", "application/json"}}, []time.Duration{0, 0}},
		"500":                      {[]turn{{500, "", ""}}, []time.Duration{0, 0}},
		"429 again and again":      {[]turn{{429, "", ""}, {429, "", ""}, {429, "", ""}}, []time.Duration{0, time.Second, 3 * time.Second, 7 * time.Second}},
		"429 after an end of them": {[]turn{{429, "", ""}, {200, "", ""}, {429, "", ""}}, []time.Duration{0, time.Second, time.Second, 2 * time.Second}},
		"Retry-After of a year":    {[]turn{{429, "31536000", ""}}, []time.Duration{0, longestDefer}},
		"Retry-After of no number": {[]turn{{429, "soon", ""}}, []time.Duration{0, time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &answers{turns: test.turns}
				g := &gate{next: a, count: func(string, int) {}}
				start := time.Now()
				for range test.want {
					if err := pass(t, g, t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				for i, at := range a.times {
					if got := at.Sub(start); got != test.want[i] {
						t.Errorf("request %d was sent after %v, want %v", i, got, test.want[i])
					}
				}
			})
		})
	}
}

// One answer defers all callers, and a call whose time is shorter ends at once.
func TestGateDefersAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &answers{turns: []turn{{429, "10", ""}}}
		g := &gate{next: a, count: func(string, int) {}}
		start := time.Now()
		if err := pass(t, g, t.Context()); err != nil {
			t.Fatal(err)
		}
		if left := g.left(); left != 10*time.Second {
			t.Errorf("deferred for %v, want 10 s", left)
		}
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if err := pass(t, g, t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		short, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := pass(t, g, short); !errors.Is(err, errDeferred) || time.Since(start) != 0 {
			t.Errorf("call of 5 s: %v after %v, want %v at once", err, time.Since(start), errDeferred)
		}
		leaving, leave := context.WithCancel(t.Context())
		wg.Go(func() {
			if err := pass(t, g, leaving); !errors.Is(err, context.Canceled) || time.Since(start) != 0 {
				t.Errorf("call that is given up: %v after %v, want %v at once", err, time.Since(start), context.Canceled)
			}
		})
		synctest.Wait()
		leave()
		wg.Wait()
		if len(a.times) != 6 || time.Since(start) != 10*time.Second {
			t.Errorf("%d requests after %v, want 6 after 10 s", len(a.times), time.Since(start))
		}
	})
}
