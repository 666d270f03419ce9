package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"
)

// callTime bounds a call whose context does not. A bulk create of ports may take a minute.
const callTime = 2 * time.Minute

// readTries is how often a read is tried when there is no answer.
const readTries = 3

// request is a call of Neutron.
type request struct {
	// call is its name in errors and metrics, as "create port".
	call   string
	method string
	// keystone is true for a call of Keystone.
	keystone bool
	// path is below /v2.0, or below /v3 of Keystone.
	path  []string
	query url.Values
	body  any
	into  any
	// revision is for If-Match; 0 is none.
	revision int
}

// do sends a request and decodes its answer. Errors: those of this package.
func (c *Cloud) do(ctx context.Context, r request) (err error) {
	defer func(start time.Time) { c.metrics.observe(r.call, start, err) }(time.Now())
	for _, part := range r.path {
		if !isPart(part) {
			return &failure{call: r.call, kind: ErrInvalid, text: fmt.Sprintf("%q is neither an ID of OpenStack nor the name of a host", clean(part))}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	opts := &gophercloud.RequestOpts{JSONBody: r.body, JSONResponse: r.into, OkCodes: []int{200, 201, 202, 204}}
	if r.revision > 0 {
		opts.MoreHeaders = map[string]string{"If-Match": "revision_number=" + strconv.Itoa(r.revision)}
	}
	service := c.neutron
	if r.keystone {
		service = c.keystone
	}
	at := service.ServiceURL(r.path...)
	if len(r.query) > 0 {
		at += "?" + r.query.Encode()
	}
	_, err = service.Request(ctx, r.method, at, opts) //nolint:bodyclose // gophercloud closes it
	return translate(r.call, err)
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
// or several, as "qos/policies".
func list[T any](ctx context.Context, c *Cloud, resource string, q url.Values) ([]T, error) {
	call := "list " + strings.NewReplacer("-", " ", "/", " ").Replace(resource)
	path := strings.Split(resource, "/")
	key := strings.ReplaceAll(path[len(path)-1], "-", "_")
	query := url.Values{}
	for k, v := range q {
		query[k] = slices.Clone(v)
	}
	query.Set("limit", strconv.Itoa(pageSize))
	var all []T
	for {
		var page map[string]json.RawMessage
		err := c.do(ctx, request{call: call, method: http.MethodGet, path: path, query: query, into: &page})
		if err != nil {
			// Not found is the last object of the page before: the list is not complete.
			return nil, as(ErrUnavailable, err, ErrNotFound)
		}
		var some []T
		if err := json.Unmarshal(page[key], &some); err != nil {
			return nil, translate(call, fmt.Errorf("decode the answer: %w", err))
		}
		all = append(all, some...)
		marker, err := nextMarker(page[key+"_links"])
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

// read reads one object by ID.
func read[T any](ctx context.Context, c *Cloud, resource, id string) (T, error) {
	return send[T](ctx, c, request{call: "read " + noun(resource), method: http.MethodGet, path: []string{resource, id}})
}

// create creates one object.
func create[T any](ctx context.Context, c *Cloud, resource string, body any) (T, error) {
	key := strings.ReplaceAll(noun(resource), " ", "_")
	return send[T](ctx, c, request{
		call: "create " + noun(resource), method: http.MethodPost, path: []string{resource},
		body: map[string]any{key: body},
	})
}

// send sends a request whose answer is one object in an envelope.
func send[T any](ctx context.Context, c *Cloud, r request) (T, error) {
	var out T
	var envelope map[string]json.RawMessage
	r.into = &envelope
	if err := c.do(ctx, r); err != nil {
		return out, err
	}
	key := strings.ReplaceAll(noun(r.path[0]), " ", "_")
	if err := json.Unmarshal(envelope[key], &out); err != nil {
		return out, translate(r.call, fmt.Errorf("decode the answer: %w", err))
	}
	return out, nil
}

// remove deletes one object; nil if it is gone.
func (c *Cloud) remove(ctx context.Context, resource, id string) error {
	err := c.do(ctx, request{call: "delete " + noun(resource), method: http.MethodDelete, path: []string{resource, id}})
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// noun returns the singular of a resource of the API, as "security group".
func noun(resource string) string {
	return strings.ReplaceAll(strings.TrimSuffix(resource, "s"), "-", " ")
}
