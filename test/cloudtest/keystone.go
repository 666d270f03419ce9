package cloudtest

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// token is who calls, and until when.
type token struct {
	caller
	expires time.Time
}

// caller is the project of a token and its role there.
type caller struct {
	project string
	admin   bool
}

// identity serves Keystone.
func (s *Server) identity(w http.ResponseWriter, r *http.Request, parts []string, body Object) (int, any) {
	if path := strings.Join(parts, "/"); r.Method == http.MethodGet && (path == "projects" || path == "auth/projects") {
		return s.listProjects(r, path == "projects")
	}
	if r.Method != http.MethodPost || strings.Join(parts, "/") != "auth/tokens" {
		return http.StatusOK, Object{"versions": Object{"values": []Object{{
			"id": "v3.14", "status": "stable", "links": []Object{{"rel": "self", "href": base(r) + "/identity/v3/"}},
		}}}}
	}
	who, ok := s.login(body)
	if !ok {
		return unauthorized()
	}
	id := fmt.Sprintf("token-%d", s.requests)
	t := token{caller: who, expires: time.Now().Add(s.lifetime)}
	s.tokens[id] = t
	w.Header().Set("X-Subject-Token", id)
	role := "member"
	if who.admin {
		role = "admin"
	}
	endpoint := func(url string) []Object {
		return []Object{{"id": url, "interface": "public", "region": "RegionOne", "region_id": "RegionOne", "url": url}}
	}
	return http.StatusCreated, Object{"token": Object{
		"methods": []string{"password"}, "expires_at": t.expires.UTC().Format("2006-01-02T15:04:05.000000Z"),
		"issued_at": time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"),
		"project":   Object{"id": who.project, "name": who.project, "domain": Object{"id": "default", "name": "Default"}},
		"roles":     []Object{{"id": role, "name": role}},
		"catalog": []Object{
			{"id": "network", "type": "network", "name": "neutron", "endpoints": endpoint(base(r) + "/network")},
			{"id": "identity", "type": "identity", "name": "keystone", "endpoints": endpoint(base(r) + "/identity/v3")},
		},
	}}
}

// NameProject names a project, which may be a new one. The projects of a Server have their
// IDs as names.
func (s *Server) NameProject(id, name string) { s.locked(func() { s.projects[id] = name }) }

// listProjects returns all projects to an administrator, and its own to any other caller.
func (s *Server) listProjects(r *http.Request, all bool) (int, any) {
	c, ok := s.caller(r)
	switch {
	case !ok:
		return unauthorized()
	case all && !c.admin:
		return http.StatusForbidden, Object{"error": Object{"code": 403, "title": "Forbidden", "message": "You are not authorized to perform the requested action: identity:list_projects."}}
	}
	out := []Object{}
	for id, name := range s.projects {
		if all || id == c.project {
			out = append(out, Object{"id": id, "name": name, "domain_id": "default", "enabled": true})
		}
	}
	return http.StatusOK, Object{"projects": out}
}

// login returns the owner of credentials.
func (s *Server) login(body Object) (caller, bool) {
	methods, _ := dig(body, "auth", "identity", "methods").([]any)
	if len(methods) != 1 {
		return caller{}, false
	}
	switch methods[0] {
	case "application_credential":
		id, secret := dig(body, "auth", "identity", "application_credential", "id"), dig(body, "auth", "identity", "application_credential", "secret")
		return caller{AdminProject, true}, id == "fairlead" && secret == s.secret
	case "password":
		name, password := dig(body, "auth", "identity", "password", "user", "name"), dig(body, "auth", "identity", "password", "user", "password")
		return caller{MemberProject, false}, name == "member" && password == s.secret
	}
	return caller{}, false
}

// caller returns the owner of a request's token.
func (s *Server) caller(r *http.Request) (caller, bool) {
	t, ok := s.tokens[r.Header.Get("X-Auth-Token")]
	return t.caller, ok && time.Now().Before(t.expires)
}

func unauthorized() (int, any) {
	return http.StatusUnauthorized, Object{"error": Object{
		"code": 401, "title": "Unauthorized", "message": "The request you have made requires authentication.",
	}}
}

// base is the URL that the client used.
func base(r *http.Request) string {
	if r.TLS != nil {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

// dig returns a member of nested objects, nil if there is none.
func dig(o Object, keys ...string) any {
	var v any = o
	for _, k := range keys {
		m, ok := v.(Object)
		if !ok {
			return nil
		}
		v = m[k]
	}
	return v
}
