package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gophercloud/gophercloud/v2"
)

// callTime bounds a call whose context does not. A bulk create of ports may take a minute.
const callTime = 2 * time.Minute

// readTries is how often a read is tried when there is no answer.
const readTries = 3

// api sends the calls of this package through those of gophercloud.
type api struct {
	neutron, keystone *gophercloud.ServiceClient
	metrics           *metrics
	tag, project      string
}

// do makes a call, which send sends, and measures it. Its name goes into errors and metrics,
// as "create port". The parts are those of its path that come from elsewhere. Errors: those
// of this package.
func (a *api) do(ctx context.Context, call string, send func(ctx context.Context) error, parts ...string) (err error) {
	defer func(start time.Time) { a.metrics.observe(call, start, err) }(time.Now())
	for _, part := range parts {
		if !isPart(part) {
			return &failure{call: call, kind: ErrInvalid, text: fmt.Sprintf("%q is neither an ID of OpenStack nor the name of a host", clean(part))}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	return translate(call, send(ctx))
}

// object makes a call as do, and returns the object with a key in its answer.
func object[T any](ctx context.Context, a *api, call, key string, send func(ctx context.Context) gophercloud.Result, parts ...string) (out T, err error) {
	err = a.do(ctx, call, func(ctx context.Context) error {
		var body map[string]json.RawMessage
		if err := send(ctx).ExtractInto(&body); err != nil {
			return err
		}
		return decode(body[key], &out)
	}, parts...)
	return out, err
}

// answer is an answer of any of gophercloud's packages.
type answer interface {
	ExtractIntoStructPtr(to any, key string) error
}

// member is an object in an answer, as it is.
type member struct{ json.RawMessage }

// read reads an object by its ID with a function of gophercloud. The noun is as "port".
func read[T any, R answer](
	ctx context.Context, a *api, noun, id string, get func(context.Context, *gophercloud.ServiceClient, string) R,
) (out T, err error) {
	err = a.do(ctx, "read "+noun, func(ctx context.Context) error {
		var raw member
		if err := get(ctx, a.neutron, id).ExtractIntoStructPtr(&raw, strings.ReplaceAll(noun, " ", "_")); err != nil {
			return err
		}
		return decode(raw.RawMessage, &out)
	}, id)
	return out, err
}

// decode reads a member of an answer. Errors: the answer does not have it, or it is another.
func decode(raw json.RawMessage, into any) error {
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("decode the answer: %w", err)
	}
	return nil
}

// remove deletes an object; nil if it is gone.
func remove[R interface{ ExtractErr() error }](
	ctx context.Context, a *api, call, id string, send func(context.Context, *gophercloud.ServiceClient, string) R,
) error {
	err := a.do(ctx, call, func(ctx context.Context) error { return send(ctx, a.neutron, id).ExtractErr() }, id)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// request sends a request that gophercloud has no function for.
func (a *api) request(ctx context.Context, method string, body, into any, path ...string) error {
	opts := &gophercloud.RequestOpts{JSONBody: body, JSONResponse: into, OkCodes: []int{http.StatusOK, http.StatusCreated, http.StatusNoContent}}
	_, err := a.neutron.Request(ctx, method, a.neutron.ServiceURL(path...), opts) //nolint:bodyclose // gophercloud closes it
	return err
}

var (
	partForm = regexp.MustCompile(`^[0-9A-Za-z_-][0-9A-Za-z_.-]{0,254}$`)
	idForm   = regexp.MustCompile(`^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$`)
)

// isPart reports whether s may be a part of a path: an ID, the name of a host, or a name of
// the API.
func isPart(s string) bool { return partForm.MatchString(s) }

// isID reports whether s has the form of Neutron's IDs.
func isID(s string) bool { return idForm.MatchString(s) }

// repeatReads is gophercloud's RetryFunc: a read without an answer is repeated at once. A
// write is not, since the cloud may have done it.
func repeatReads(ctx context.Context, method, _ string, _ *gophercloud.RequestOpts, err error, failures uint) error {
	var answer gophercloud.ErrUnexpectedResponseCode
	if method != http.MethodGet || failures >= readTries || ctx.Err() != nil ||
		errors.As(err, &answer) || errors.Is(err, errDeferred) {
		return err
	}
	return nil
}

// pageSize is the number of objects in a page of a list.
const pageSize = 1000

// list reads all pages of a list. The resource is a part of the path, as "security-groups",
// or several, as "qos/policies"; the filters are each a ListOpts of
// gophercloud, or have such fields.
//
// gophercloud's own pager is not used: it sends the token to where the link of a page says,
// and reads a page thrice.
func list[T any](ctx context.Context, a *api, resource string, filters ...any) ([]T, error) {
	call := "list " + strings.NewReplacer("-", " ", "/", " ").Replace(resource)
	key := strings.ReplaceAll(resource[strings.LastIndex(resource, "/")+1:], "-", "_")
	query := url.Values{"limit": {strconv.Itoa(pageSize)}}
	for _, f := range filters {
		q, err := gophercloud.BuildQueryString(f)
		if err != nil {
			return nil, translate(call, err)
		}
		maps.Copy(query, q.Query())
	}
	var all []T
	for {
		var body map[string]json.RawMessage
		var some []T
		err := a.do(ctx, call, func(ctx context.Context) error {
			if _, err := a.neutron.Get(ctx, a.neutron.ServiceURL(resource)+"?"+query.Encode(), &body, nil); err != nil { //nolint:bodyclose // gophercloud closes it
				return err
			}
			return decode(body[key], &some)
		})
		if err != nil {
			// Not found is the last object of the page before: the list is not complete.
			return nil, as(ErrUnavailable, err, ErrNotFound)
		}
		all = append(all, some...)
		marker, err := nextMarker(body[key+"_links"])
		if err != nil {
			return nil, translate(call, err)
		}
		if marker == "" || len(some) == 0 || marker == query.Get("marker") {
			return all, nil
		}
		query.Set("marker", marker)
	}
}

// nextMarker returns the marker of the next page, empty if there is none. Only the marker of
// a link is used: behind a proxy its scheme and host may be those of another server.
func nextMarker(raw json.RawMessage) (string, error) {
	if len(raw) == 0 {
		return "", nil
	}
	var links []gophercloud.Link
	if err := decode(raw, &links); err != nil {
		return "", err
	}
	next, err := gophercloud.ExtractNextURL(links)
	if err != nil {
		return "", err
	}
	at, err := url.Parse(next)
	if err != nil {
		return "", fmt.Errorf("decode the link to the next page: %w", err)
	}
	return at.Query().Get("marker"), nil
}

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
