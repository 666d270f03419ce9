package cloudtest

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

// resource describes a kind of object of Neutron.
type resource struct {
	one, many string
	// exception is the beginning of the names of its errors, and word its name in their text.
	exception, word string
	// quota is its name in quotas.
	quota string
	// post and put are the attributes that a request may have.
	post, put []string
	// create completes a new object, update changes one, and remove refuses or cleans up.
	create func(s *Server, c caller, o Object) *fault
	update func(s *Server, c caller, o, changes Object) *fault
	remove func(s *Server, c caller, o Object) *fault
}

// fault is an error of Neutron.
type fault struct {
	status     int
	kind, text string
}

func (f *fault) Error() string { return f.kind + ": " + f.text }

func refuse(status int, kind, format string, args ...any) *fault {
	return &fault{status, kind, fmt.Sprintf(format, args...)}
}

func invalid(format string, args ...any) *fault {
	return refuse(http.StatusBadRequest, "HTTPBadRequest", format, args...)
}

func forbidden(rule string) *fault {
	return refuse(http.StatusForbidden, "PolicyNotAuthorized", "(%s) is disallowed by policy", rule)
}

func (r *resource) notFound(id string) *fault {
	return refuse(http.StatusNotFound, r.exception+"NotFound", "%s %s could not be found.", r.word, id)
}

// neutron serves /v2.0.
func (s *Server) neutron(r *http.Request, parts []string, body Object) (int, any) {
	if len(parts) == 0 || parts[0] == "" {
		return http.StatusOK, Object{"versions": []Object{{"id": "v2.0", "status": "CURRENT", "links": []Object{{"rel": "self", "href": base(r) + "/network/v2.0/"}}}}}
	}
	c, ok := s.caller(r)
	if !ok {
		return unauthorized()
	}
	status, answer, f := s.route(r, c, parts, body)
	if f != nil {
		return f.status, Object{"NeutronError": Object{"type": f.kind, "message": f.text, "detail": ""}}
	}
	return status, answer
}

func (s *Server) route(r *http.Request, c caller, parts []string, body Object) (int, any, *fault) {
	switch parts[0] {
	case "quotas":
		return s.serveQuotas(r, c, parts, body)
	case "extensions":
		return http.StatusOK, Object{"extensions": extensions()}, nil
	}
	if parts[0] == "qos" && len(parts) > 1 {
		parts = append([]string{"qos/" + parts[1]}, parts[2:]...)
	}
	res := s.kinds[parts[0]]
	if res == nil {
		return 0, nil, refuse(http.StatusNotFound, "HTTPNotFound", "The resource could not be found.")
	}
	if len(parts) == 1 {
		switch r.Method {
		case http.MethodGet:
			page, f := s.list(res, c, r)
			return http.StatusOK, page, f
		case http.MethodPost:
			answer, f := s.create(res, c, body)
			return http.StatusCreated, answer, f
		}
		return 0, nil, refuse(http.StatusNotFound, "HTTPNotFound", "The resource could not be found.")
	}
	o := s.store[res.many].objects[parts[1]]
	if o == nil || !s.visible(res, c, o) {
		return 0, nil, res.notFound(parts[1])
	}
	if f := match(r, o); f != nil {
		return 0, nil, f
	}
	if len(parts) > 2 {
		return s.act(r, res, c, o, parts[2:], body)
	}
	switch r.Method {
	case http.MethodGet:
		return http.StatusOK, Object{res.one: pick(view(c, o), r.URL.Query()["fields"])}, nil
	case http.MethodPut:
		changes, _ := body[res.one].(Object)
		if f := s.change(res, c, o, changes); f != nil {
			return 0, nil, f
		}
		return http.StatusOK, Object{res.one: view(c, o)}, nil
	case http.MethodDelete:
		return http.StatusNoContent, nil, s.delete(res, c, o)
	}
	return 0, nil, refuse(http.StatusNotFound, "HTTPNotFound", "The resource could not be found.")
}

// act does what is below an object: tags and actions.
func (s *Server) act(r *http.Request, res *resource, c caller, o Object, parts []string, body Object) (int, any, *fault) {
	if parts[0] == "tags" {
		return tags(r, o, parts[1:], body)
	}
	if res.many == "ports" && parts[0] == "bindings" {
		return s.serveBindings(r, c, o, parts[1:], body)
	}
	do := s.actions[res.many+" "+parts[0]]
	if do == nil || len(parts) > 1 {
		return 0, nil, refuse(http.StatusNotFound, "HTTPNotFound", "The resource could not be found.")
	}
	answer, f := do(s, c, o, body)
	return http.StatusOK, answer, f
}

// action is a member of a resource that does something, as add_subports of a trunk.
type action func(s *Server, c caller, o, body Object) (any, *fault)

// create creates one object, or all of a list or none.
func (s *Server) create(res *resource, c caller, body Object) (any, *fault) {
	many, ok := body[res.listKey()].([]any)
	if !ok {
		one, ok := body[res.one].(Object)
		if !ok {
			return nil, invalid("Unable to find '%s' in request body", res.one)
		}
		o, f := s.createOne(res.many, c, one)
		if f != nil {
			return nil, f
		}
		answer := view(c, o)
		s.afterAnswer(res, o)
		return Object{res.one: answer}, nil
	}
	var made, answers []Object
	for _, one := range many {
		attributes, _ := one.(Object)
		o, f := s.createOne(res.many, c, attributes)
		if f != nil {
			for _, m := range made {
				s.forget(res, m)
			}
			return nil, f
		}
		made = append(made, o)
	}
	for _, o := range made {
		answers = append(answers, view(c, o))
		s.afterAnswer(res, o)
	}
	return Object{res.listKey(): answers}, nil
}

// many_ is the name of a list in JSON.
func (r *resource) listKey() string {
	return strings.ReplaceAll(strings.TrimPrefix(r.many, "qos/"), "-", "_")
}

// afterAnswer does the work of Neutron that comes after an answer: the binding of a port raises its revision.
func (s *Server) afterAnswer(res *resource, o Object) {
	if res.many == "ports" && o["binding:host_id"] != "" {
		touch(o)
		if s.active {
			s.activate(o)
		}
	}
}

func (s *Server) createOne(many string, c caller, attributes Object) (Object, *fault) {
	res := s.kinds[many]
	if f := unknown(attributes, res.post); f != nil {
		return nil, f
	}
	project := text(attributes, "project_id")
	if project == "" {
		project = c.project
	}
	if project != c.project && !c.admin {
		return nil, invalid("Specifying 'project_id' or 'tenant_id' other than the authenticated project in request requires admin or advsvc privileges")
	}
	if res.quota != "" {
		if limit := s.quotasOf(project)[res.quota]; limit >= 0 && s.count(res.many, project) >= limit {
			return nil, refuse(http.StatusConflict, "OverQuota", "Quota exceeded for resources: ['%s'].", res.quota)
		}
	}
	now := time.Now().UTC().Format(time.RFC3339)
	o := Object{
		"id": s.nextID(), "name": "", "description": "", "tags": []any{}, "revision_number": 1,
		"created_at": now, "updated_at": now,
	}
	maps.Copy(o, attributes)
	o["project_id"], o["tenant_id"] = project, project
	if f := res.create(s, c, o); f != nil {
		return nil, f
	}
	s.store[res.many].objects[o["id"].(string)] = o
	return o, nil
}

func (s *Server) change(res *resource, c caller, o, changes Object) *fault {
	if f := unknown(changes, res.put); f != nil {
		return f
	}
	if !c.admin && o["project_id"] != c.project {
		return forbidden("rule:update_" + res.one)
	}
	if res.update != nil {
		if f := res.update(s, c, o, changes); f != nil {
			return f
		}
	}
	maps.Copy(o, changes)
	touch(o)
	return nil
}

func (s *Server) delete(res *resource, c caller, o Object) *fault {
	if !c.admin && o["project_id"] != c.project {
		return forbidden("rule:delete_" + res.one)
	}
	if res.remove != nil {
		if f := res.remove(s, c, o); f != nil {
			return f
		}
	}
	s.forget(res, o)
	return nil
}

// forget removes an object, and frees the addresses of a port.
func (s *Server) forget(res *resource, o Object) {
	delete(s.store[res.many].objects, o["id"].(string))
	if res.many == "ports" {
		s.free(o)
		delete(s.further, o["id"].(string))
	}
}

// complete gives an object the attributes that it lacks.
func complete(o, defaults Object) {
	for name, value := range defaults {
		if _, has := o[name]; !has {
			o[name] = value
		}
	}
}

// touch raises the revision of an object that changed.
func touch(o Object) {
	o["revision_number"] = o["revision_number"].(int) + 1
	o["updated_at"] = time.Now().UTC().Format(time.RFC3339)
}

// match compares If-Match with the revision of an object.
func match(r *http.Request, o Object) *fault {
	want, ok := strings.CutPrefix(r.Header.Get("If-Match"), "revision_number=")
	if !ok || want == fmt.Sprint(o["revision_number"]) {
		return nil
	}
	return refuse(http.StatusPreconditionFailed, "RevisionNumberConstraintFailed", "Constrained to %s, but current revision is %v", want, o["revision_number"])
}

func unknown(attributes Object, known []string) *fault {
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		if name == "tags" && !slices.Contains(known, name) {
			return invalid("Attribute 'tags' not allowed in POST")
		}
		if !slices.Contains(known, name) {
			return invalid("Unrecognized attribute(s) '%s'", name)
		}
	}
	return nil
}

// tags serves the tags of an object.
func tags(r *http.Request, o Object, parts []string, body Object) (int, any, *fault) {
	have := texts(o["tags"])
	switch {
	case r.Method == http.MethodGet && len(parts) == 0:
		return http.StatusOK, Object{"tags": o["tags"]}, nil
	case r.Method == http.MethodPut && len(parts) == 0:
		have = texts(body["tags"])
	case r.Method == http.MethodPut && len(parts) == 1:
		have = append(have, parts[0])
	case r.Method == http.MethodDelete:
		have = slices.DeleteFunc(have, func(t string) bool { return len(parts) == 0 || t == parts[0] })
	}
	slices.Sort(have)
	for _, t := range have {
		if len(t) > 255 {
			return 0, nil, invalid("Invalid input for tags. Reason: '%s' exceeds maximum length of 255.", t)
		}
	}
	o["tags"] = anys(slices.Compact(have))
	touch(o)
	return http.StatusOK, Object{"tags": o["tags"]}, nil
}

// text returns a member that is a text, empty if it is none.
func text(o Object, key string) string {
	t, _ := o[key].(string)
	return t
}

// number returns a member that is a number, 0 if it is none.
func number(o Object, key string) int {
	switch n := o[key].(type) {
	case float64:
		return int(n)
	case int:
		return n
	}
	return 0
}

// texts returns the texts of a list.
func texts(v any) []string {
	list, _ := v.([]any)
	var out []string
	for _, e := range list {
		if t, ok := e.(string); ok {
			out = append(out, t)
		}
	}
	return out
}

func anys(list []string) []any {
	out := []any{}
	for _, e := range list {
		out = append(out, e)
	}
	return out
}

// extensions has the aliases that Zed lists, which are more than it does and less.
func extensions() []Object {
	var all []Object
	for _, alias := range []string{
		"address-group", "allowed-address-pairs", "binding", "dns-integration", "extraroute", "pagination",
		"port-security", "quota_details", "revision-if-match", "security-group", "standard-attr-tag", "trunk",
	} {
		all = append(all, Object{"alias": alias, "name": alias})
	}
	return all
}
