package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// ErrInjected is in every error that a fault causes. Clients see it as they see a broken connection.
var ErrInjected = errors.New("injected fault")

// Kind is the kind of a fault.
type Kind int

// The kinds of faults.
const (
	// None lets the request pass.
	None Kind = iota
	// Refuse fails the request before it is sent: nothing has happened.
	Refuse
	// LoseReply sends the request and loses the reply: the request has its effect, and
	// the client cannot know.
	LoseReply
	// Conflict answers 409 without sending the request, as if the object had changed
	// meanwhile.
	Conflict
)

// Fault is the treatment of one request.
type Fault struct {
	Kind  Kind
	Delay time.Duration // before the fault or the request
}

// Chooser chooses the fault of a request. The verb is as in RBAC: get, list, watch,
// create, update, patch, delete or deletecollection. resource is plural, such as
// "podattachments"; subresource is empty for the object itself; name is empty for list,
// watch and create. For a request without a resource, such as discovery, resource is the
// path, and verb the HTTP method in lower case. Calls come one at a time, so that a
// chooser may count without a lock.
type Chooser func(verb, resource, subresource, name string) Fault

// Faults counts the requests of clients and injects faults. Several goroutines may use it
// at once.
type Faults struct {
	mu     sync.Mutex
	choose Chooser
	counts map[string]int
}

// NewFaults returns Faults with a chooser; nil injects no faults.
func NewFaults(choose Chooser) *Faults {
	return &Faults{choose: choose, counts: map[string]int{}}
}

// Set replaces the chooser; nil injects no faults. Requests in progress keep their chosen
// fault.
func (f *Faults) Set(choose Chooser) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.choose = choose
}

// Count returns how many requests of a verb for a resource there were, including failed
// ones. A subresource is named as in RBAC: "podattachments/status".
func (f *Faults) Count(verb, resource string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts[verb+" "+resource]
}

// Counts returns all counts, by "verb resource" or "verb resource/subresource".
func (f *Faults) Counts() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.counts)
}

// Reset sets all counts to zero.
func (f *Faults) Reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.counts)
}

// next counts a request and returns its fault.
func (f *Faults) next(r request) Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := r.verb + " " + r.resource
	if r.subresource != "" {
		key += "/" + r.subresource
	}
	f.counts[key]++
	if f.choose == nil {
		return Fault{}
	}
	return f.choose(r.verb, r.resource, r.subresource, r.name)
}

// WithFaults returns a configuration like REST whose clients' requests go through faults.
func (c *Cluster) WithFaults(faults *Faults) *rest.Config {
	cfg := rest.CopyConfig(c.REST)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return &faultyTransport{faults: faults, next: next} })
	return cfg
}

// faultyTransport injects the faults.
type faultyTransport struct {
	faults *Faults
	next   http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *faultyTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	parsed := parseRequest(r)
	fault := t.faults.next(parsed)
	if err := delay(r, fault.Delay); err != nil {
		closeBody(r)
		return nil, err
	}
	switch fault.Kind {
	case Refuse:
		closeBody(r)
		return nil, fmt.Errorf("%s %s: refused: %w", r.Method, r.URL.Path, ErrInjected)
	case Conflict:
		closeBody(r)
		return conflict(r, parsed)
	case LoseReply:
		reply, err := t.next.RoundTrip(r)
		if err != nil {
			return nil, err
		}
		// The server has done the work when the status line arrives.
		if err := reply.Body.Close(); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%s %s: reply lost: %w", r.Method, r.URL.Path, ErrInjected)
	default:
		return t.next.RoundTrip(r)
	}
}

func delay(r *http.Request, length time.Duration) error {
	if length <= 0 {
		return nil
	}
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-r.Context().Done():
		return r.Context().Err()
	}
}

// closeBody closes the body of a request that is not sent, as a RoundTripper must.
func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

// conflict returns the API server's answer to an update of an object that has changed.
func conflict(r *http.Request, parsed request) (*http.Response, error) {
	resource := schema.GroupResource{Group: parsed.group, Resource: parsed.resource}
	status := apierrors.NewConflict(resource, parsed.name, ErrInjected).Status()
	status.APIVersion, status.Kind = "v1", "Status"
	body, err := json.Marshal(status)
	if err != nil {
		return nil, err
	}
	return &http.Response{
		Status:        strconv.Itoa(http.StatusConflict) + " " + http.StatusText(http.StatusConflict),
		StatusCode:    http.StatusConflict,
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        http.Header{"Content-Type": {"application/json"}},
		Body:          io.NopCloser(bytes.NewReader(body)),
		ContentLength: int64(len(body)),
		Request:       r,
	}, nil
}

// request describes the target of a request to the API server.
type request struct {
	verb, group, resource, subresource, name string
}

// parseRequest parses the paths of the API:
//
//	/api/v1/[namespaces/NAMESPACE/]RESOURCE[/NAME[/SUBRESOURCE]]
//	/apis/GROUP/VERSION/[namespaces/NAMESPACE/]RESOURCE[/NAME[/SUBRESOURCE]]
func parseRequest(r *http.Request) request {
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	var parsed request
	switch {
	case len(path) > 2 && path[0] == "api":
		path = path[2:]
	case len(path) > 3 && path[0] == "apis":
		parsed.group, path = path[1], path[3:]
	default:
		return request{verb: strings.ToLower(r.Method), resource: r.URL.Path}
	}
	// A namespace has subresources of its own: /api/v1/namespaces/NAME/status is not about a resource in it.
	if len(path) > 2 && path[0] == "namespaces" && path[2] != "status" && path[2] != "finalize" {
		path = path[2:]
	}
	parsed.resource = path[0]
	if len(path) > 1 {
		parsed.name = path[1]
	}
	if len(path) > 2 {
		parsed.subresource = strings.Join(path[2:], "/")
	}
	parsed.verb = verbOf(r, parsed.name != "")
	return parsed
}

// verbOf returns the verb of a request as in RBAC. A list or watch of one object by its
// path does not exist any more.
func verbOf(r *http.Request, named bool) string {
	switch {
	case r.Method == http.MethodPost:
		return "create"
	case r.Method == http.MethodPut:
		return "update"
	case r.Method == http.MethodPatch:
		return "patch"
	case r.Method == http.MethodDelete && named:
		return "delete"
	case r.Method == http.MethodDelete:
		return "deletecollection"
	case named:
		return "get"
	}
	if watch, err := strconv.ParseBool(r.URL.Query().Get("watch")); err == nil && watch {
		return "watch"
	}
	return "list"
}
