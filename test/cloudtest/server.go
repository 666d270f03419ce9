// Package cloudtest is a Keystone and a Neutron in memory that speak the HTTP API. They
// behave as the release Zed with OVN does: tags in the POST of a port are dropped, ports
// become ACTIVE when they are plugged, a subport has no device and loses its owner.
//
// A Server is an http.Handler, so that it also serves programs in other network namespaces.
package cloudtest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// The entries of the clouds.yaml of a Server.
const (
	// Admin logs in with an application credential and has the role admin in AdminProject.
	Admin = "admin"
	// Member logs in with a password and is a plain member of MemberProject.
	Member = "member"
)

// The projects of a Server.
const (
	AdminProject  = "5b019a3deff442ceb06e49fe7b7123d8"
	MemberProject = "67cf6aa8abd247748f2028732b19f2fa"
)

// Object is a resource as it is in JSON.
type Object = map[string]any

// Server is a cloud. Its zero value is not usable: see New and NewServer.
type Server struct {
	// File is a clouds.yaml for a Server of New.
	File string
	// URL is that of a Server of New.
	URL string

	mu       sync.Mutex
	secret   string
	lifetime time.Duration
	tokens   map[string]token
	kinds    map[string]*resource
	actions  map[string]action
	store    map[string]*collection
	used     map[string]map[string]string // subnet and address to port
	quotas   map[string]map[string]int
	fault    func(method, path string) Fault
	active   bool
	stuck    func(port Object) bool
	unbound  func(port Object) bool
	keepTags bool
	// further are the hosts of the bindings of ports that are not active.
	further    map[string][]string
	projects   map[string]string // names by ID
	oneBinding bool
	maxPairs   int
	calls      map[string]int
	requests   int
	ids        int
}

// NewServer returns an empty cloud, whose projects have their default security groups.
func NewServer() *Server {
	s := &Server{
		secret: "secret", lifetime: time.Hour, tokens: map[string]token{}, kinds: kinds(), actions: actions(), store: map[string]*collection{},
		used: map[string]map[string]string{}, quotas: map[string]map[string]int{}, calls: map[string]int{}, maxPairs: 10, further: map[string][]string{},
		projects: map[string]string{AdminProject: AdminProject, MemberProject: MemberProject},
	}
	for name := range s.kinds {
		s.store[name] = &collection{objects: map[string]Object{}}
	}
	for _, project := range []string{AdminProject, MemberProject} {
		s.defaultGroup(project)
	}
	return s
}

// New serves a cloud until the test ends, and writes a clouds.yaml for it.
func New(tb testing.TB) *Server {
	tb.Helper()
	s := NewServer()
	server := httptest.NewServer(s)
	tb.Cleanup(server.Close)
	s.URL = server.URL
	s.File = filepath.Join(tb.TempDir(), "clouds.yaml")
	if err := s.WriteFile(s.File, s.URL); err != nil {
		tb.Fatal(err)
	}
	return s
}

// WriteFile writes a clouds.yaml for a cloud that is served at a URL.
func (s *Server) WriteFile(path, url string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return os.WriteFile(path, fmt.Appendf(nil, `clouds:
  %s:
    auth_type: v3applicationcredential
    auth:
      auth_url: %s/identity/v3
      application_credential_id: fairlead
      application_credential_secret: %s
    region_name: RegionOne
  %s:
    auth:
      auth_url: %s/identity/v3
      username: member
      password: %s
      project_id: %s
      user_domain_id: default
    region_name: RegionOne
`, Admin, url, s.secret, Member, url, s.secret, MemberProject), 0o600)
}

// SetSecret changes the secret of all credentials. Tokens stay valid.
func (s *Server) SetSecret(secret string) { s.locked(func() { s.secret = secret }) }

// ExpireTokens ends all tokens.
func (s *Server) ExpireTokens() { s.locked(func() { clear(s.tokens) }) }

// AutoActive has ports with a host become ACTIVE at once. Otherwise they wait for Plug.
func (s *Server) AutoActive(on bool) { s.locked(func() { s.active = on }) }

// Stuck names the ports that stay DOWN, whatever is plugged.
func (s *Server) Stuck(is func(port Object) bool) { s.locked(func() { s.stuck = is }) }

// FailBinding names the ports whose binding fails.
func (s *Server) FailBinding(is func(port Object) bool) { s.locked(func() { s.unbound = is }) }

// KeepTags has the POST of a port keep its tags, as ML2's extension driver does.
func (s *Server) KeepTags(on bool) { s.locked(func() { s.keepTags = on }) }

// SetMaxPairs sets the number of allowed address pairs that a port may have; 10 without it.
func (s *Server) SetMaxPairs(n int) { s.locked(func() { s.maxPairs = n }) }

// SetQuota limits a resource of a project, as "port"; -1 is no limit.
func (s *Server) SetQuota(project, resource string, limit int) {
	s.locked(func() { s.quotasOf(project)[resource] = limit })
}

// Calls returns the number of requests by method and path, as "PUT /ports/{id}/tags" and
// "POST /auth/tokens".
func (s *Server) Calls() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.calls)
}

// ResetCalls begins to count anew.
func (s *Server) ResetCalls() { s.locked(func() { clear(s.calls) }) }

// Objects returns copies of all objects of a resource, as "ports".
func (s *Server) Objects(resource string) []Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Object
	for _, o := range s.store[resource].sorted() {
		all = append(all, copyOf(o))
	}
	return all
}

// Object returns a copy of an object, nil if there is none.
func (s *Server) Object(resource, id string) Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.store[resource].objects[id]; o != nil {
		return copyOf(o)
	}
	return nil
}

// Create creates an object of a project as an administrator, and returns its ID. Errors: those
// that Neutron would answer.
func (s *Server) Create(resource, project string, attributes Object) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	attributes = copyOf(attributes)
	attributes["project_id"] = project
	o, fault := s.createOne(resource, caller{project: project, admin: true}, attributes)
	if fault != nil {
		return "", fmt.Errorf("create %s %v: %w", resource, attributes, fault)
	}
	return o["id"].(string), nil
}

// Add is Create for tests.
func (s *Server) Add(tb testing.TB, resource, project string, attributes Object) string {
	tb.Helper()
	id, err := s.Create(resource, project, attributes)
	if err != nil {
		tb.Fatal(err)
	}
	return id
}

// AddNetwork creates a network of AdminProject with a subnet for each prefix, without DHCP.
func (s *Server) AddNetwork(tb testing.TB, name string, prefixes ...string) (network string, subnets []string) {
	tb.Helper()
	network = s.Add(tb, "networks", AdminProject, Object{"name": name})
	for i, p := range prefixes {
		version := 4.0
		if strings.Contains(p, ":") {
			version = 6
		}
		subnets = append(subnets, s.Add(tb, "subnets", AdminProject, Object{
			"name": fmt.Sprintf("%s-%d", name, i), "network_id": network, "cidr": p, "ip_version": version, "enable_dhcp": false,
		}))
	}
	return network, subnets
}

// Plug does what OVN does when a node plugs a port: it becomes ACTIVE. It reports whether it
// did, which an unbound or stuck port does not.
func (s *Server) Plug(port string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.store["ports"].objects[port]
	return o != nil && s.activate(o)
}

// Unplug has a port be DOWN again.
func (s *Server) Unplug(port string) {
	s.locked(func() {
		if o := s.store["ports"].objects[port]; o != nil && o["status"] == "ACTIVE" {
			o["status"] = "DOWN"
			touch(o)
		}
	})
}

func (s *Server) locked(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// ServeHTTP serves /identity and /network.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body Object
	if r.Body != nil && r.Method != http.MethodGet {
		// A body that is no object is an empty one: the API asks for its members then.
		_ = json.NewDecoder(r.Body).Decode(&body)
	}
	service, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if len(parts) > 0 && (parts[0] == "v3" || parts[0] == "v2.0") {
		parts = parts[1:]
	}
	shape := shapeOf(parts)
	s.mu.Lock()
	s.requests++
	id := fmt.Sprintf("req-%d", s.requests)
	s.calls[r.Method+" "+shape]++
	var f Fault
	if s.fault != nil {
		f = s.fault(r.Method, shape)
	}
	s.mu.Unlock()

	w.Header().Set("X-Openstack-Request-Id", id)
	if !f.before(w, r) {
		return
	}
	s.mu.Lock()
	status, answer := s.serve(w, r, service, parts, body)
	var raw []byte
	if answer != nil {
		raw, _ = json.Marshal(answer) // objects of JSON always encode
	}
	s.mu.Unlock()
	f.after()
	if raw == nil {
		w.WriteHeader(status)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(raw) // a client that left has no answer
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request, service string, parts []string, body Object) (int, any) {
	switch service {
	case "identity":
		return s.identity(w, r, parts, body)
	case "network":
		return s.neutron(r, parts, body)
	}
	return http.StatusNotFound, Object{"message": "The resource could not be found.", "code": "404 Not Found", "title": "Not Found"}
}

// shapeOf returns a path without IDs, as "/ports/{id}/tags".
func shapeOf(parts []string) string {
	shape := append([]string{""}, parts...)
	if len(parts) > 1 && parts[0] != "auth" {
		shape[2] = "{id}"
	}
	return strings.Join(shape, "/")
}

// nextID returns an ID in the form of Neutron's, in the order of creation.
func (s *Server) nextID() string {
	s.ids++
	return fmt.Sprintf("%08x-0000-4000-8000-%012x", s.ids, s.ids)
}

func copyOf(o Object) Object {
	raw, err := json.Marshal(o)
	if err != nil {
		panic(err) // objects come from JSON
	}
	out := Object{}
	if err := json.Unmarshal(raw, &out); err != nil {
		panic(err)
	}
	return out
}
