package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
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
	_, err := a.neutron.Request(ctx, method, a.neutron.ServiceURL(path...), &gophercloud.RequestOpts{
		JSONBody: body, JSONResponse: into, OkCodes: []int{http.StatusOK, http.StatusCreated, http.StatusNoContent},
	}) //nolint:bodyclose // gophercloud closes it
	return err
}

// isPart reports whether s may be a part of a path: an ID, the name of a host, or a name of
// the API.
func isPart(s string) bool {
	if s == "" || len(s) > 255 || s[0] == '.' {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '-' && r != '_' && r != '.'
	})
}

// isID reports whether s has the form of Neutron's IDs.
func isID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i, r := range []byte(s) {
		dash := i == 8 || i == 13 || i == 18 || i == 23
		if dash != (r == '-') || !dash && !strings.ContainsRune("0123456789abcdefABCDEF", rune(r)) {
			return false
		}
	}
	return true
}

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
// or several, as "qos/policies"; the filter is a ListOpts of gophercloud.
//
// gophercloud's own pager is not used: it sends the token to where the link of a page says,
// and reads a page thrice.
func list[T any](ctx context.Context, a *api, resource string, filter any) ([]T, error) {
	call := "list " + strings.NewReplacer("-", " ", "/", " ").Replace(resource)
	key := strings.ReplaceAll(resource[strings.LastIndex(resource, "/")+1:], "-", "_")
	filters, err := gophercloud.BuildQueryString(filter)
	if err != nil {
		return nil, translate(call, err)
	}
	query := filters.Query()
	query.Set("limit", strconv.Itoa(pageSize))
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
func nextMarker(links json.RawMessage) (string, error) {
	if len(links) == 0 {
		return "", nil
	}
	var all []struct{ Rel, Href string }
	if err := json.Unmarshal(links, &all); err != nil {
		return "", fmt.Errorf("decode the links of a page: %w", err)
	}
	for _, l := range all {
		if l.Rel != "next" {
			continue
		}
		at, err := url.Parse(l.Href)
		if err != nil {
			return "", fmt.Errorf("decode the link to the next page: %w", err)
		}
		return at.Query().Get("marker"), nil
	}
	return "", nil
}
