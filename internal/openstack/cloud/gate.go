package cloud

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The time for which calls are deferred: from first to most if the cloud names none, and
// never longer than longestDefer if it does.
const (
	firstDefer   = time.Second
	mostDefer    = 30 * time.Second
	longestDefer = 5 * time.Minute
)

// errDeferred is the reason of a call that ends before the cloud may be called again.
var errDeferred = errors.New("the cloud defers calls")

// gate passes requests on, but none while the cloud defers them.
type gate struct {
	next  http.RoundTripper
	count func(method string, code int)

	mu    sync.Mutex
	until time.Time
	// step is the last time that was chosen without a word of the cloud.
	step time.Duration
}

// RoundTrip waits until the cloud may be called, and calls it once.
func (g *gate) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := g.wait(r.Context()); err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // a round tripper always closes it
		}
		return nil, err
	}
	resp, err := g.next.RoundTrip(r)
	if err != nil {
		g.count(r.Method, 0)
		return nil, err
	}
	g.count(r.Method, resp.StatusCode)
	g.heed(resp)
	return resp, nil
}

// wait returns nil once the cloud may be called. Errors: errDeferred when the request ends
// earlier than that, and that of the context.
func (g *gate) wait(ctx context.Context) error {
	for {
		left := g.left()
		if left == 0 {
			return ctx.Err()
		}
		if end, ok := ctx.Deadline(); ok && time.Until(end) <= left {
			return fmt.Errorf("%w for another %v", errDeferred, left.Round(time.Second))
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// left returns the time until the cloud may be called, 0 if now.
func (g *gate) left() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return max(0, time.Until(g.until))
}

// heed defers all requests if an answer asks for it. A 503 of Neutron itself, in JSON and
// without Retry-After, concerns one object only.
func (g *gate) heed(resp *http.Response) {
	after := retryAfter(resp.Header.Get("Retry-After"))
	isJSON := strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json")
	busy := resp.StatusCode == http.StatusTooManyRequests ||
		resp.StatusCode == http.StatusServiceUnavailable && (after > 0 || !isJSON)
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	switch {
	case busy && after > 0:
	case busy && now.Before(g.until):
		return // this answer is to a request that began before
	case busy:
		g.step = min(max(firstDefer, 2*g.step), mostDefer)
		after = g.step
	default:
		if resp.StatusCode < http.StatusInternalServerError && !now.Before(g.until) {
			g.step = 0
		}
		return
	}
	if until := now.Add(min(after, longestDefer)); until.After(g.until) {
		g.until = until
	}
}

// retryAfter returns the time that a Retry-After header asks for, 0 if it has none.
func retryAfter(s string) time.Duration {
	if seconds, err := strconv.ParseUint(strings.TrimSpace(s), 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(s); err == nil {
		return max(0, time.Until(at))
	}
	return 0
}
