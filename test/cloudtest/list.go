package cloudtest

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// collection is all objects of a resource.
type collection struct {
	objects map[string]Object
}

// sorted returns the objects by ID, as a paged list does.
func (c *collection) sorted() []Object {
	var all []Object
	for _, o := range c.objects {
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b Object) int { return cmp.Compare(text(a, "id"), text(b, "id")) })
	return all
}

// list returns a page of the objects that a query asks for.
func (s *Server) list(res *resource, c caller, r *http.Request) (any, *fault) {
	q := r.URL.Query()
	var page []Object
	for _, o := range s.store[res.many].sorted() {
		if !s.visible(res, c, o) {
			continue
		}
		ok, f := selects(res, o, q)
		if f != nil {
			return nil, f
		}
		if ok {
			page = append(page, o)
		}
	}
	var links []Object
	if limit, err := strconv.Atoi(q.Get("limit")); err == nil && limit > 0 {
		if marker := q.Get("marker"); marker != "" {
			if s.store[res.many].objects[marker] == nil {
				return nil, res.notFound(marker)
			}
			page = slices.DeleteFunc(page, func(o Object) bool { return text(o, "id") <= marker })
		}
		page, links = cut(res, page, limit, q)
	}
	out := []Object{}
	for _, o := range page {
		out = append(out, pick(view(c, o), q["fields"]))
	}
	answer := Object{res.listKey(): out}
	if len(links) > 0 {
		answer[res.listKey()+"_links"] = links
	}
	return answer, nil
}

// cut returns the first objects of a list, and the links to the pages beside them. Links have
// another scheme and host than the request, as behind a proxy that ends TLS.
func cut(res *resource, all []Object, limit int, q url.Values) (page, links []Object) {
	at := "http://neutron.invalid/v2.0/" + res.many + "?"
	// Neutron has a next page whenever this one is full.
	if len(all) >= limit {
		all = all[:limit]
		next := maps.Clone(q)
		next.Set("marker", text(all[limit-1], "id"))
		links = append(links, Object{"rel": "next", "href": at + next.Encode()})
	}
	if len(all) > 0 {
		links = append(links, Object{"rel": "previous", "href": at + "page_reverse=True&marker=" + text(all[0], "id")})
	}
	return all, links
}

// selects reports whether a query selects an object.
func selects(res *resource, o Object, q url.Values) (bool, *fault) {
	for key, values := range q {
		ok := true
		switch key {
		case "limit", "marker", "page_reverse", "fields", "sort_key", "sort_dir":
		case "tags":
			ok = hasAll(texts(o["tags"]), strings.Split(values[0], ","))
		case "fixed_ips":
			ok = hasAddress(o, values)
		default:
			has, known := o[key]
			if !known && !slices.Contains(res.post, key) {
				return false, invalid("['%s'] is invalid attribute for filtering", key)
			}
			ok = hasAny(has, values)
		}
		if !ok {
			return false, nil
		}
	}
	return true, nil
}

func hasAll(have, want []string) bool {
	return !slices.ContainsFunc(want, func(t string) bool { return !slices.Contains(have, t) })
}

// hasAny reports whether an attribute, or an element of it, is one of the values.
func hasAny(attribute any, values []string) bool {
	if list, ok := attribute.([]any); ok {
		return slices.ContainsFunc(texts(list), func(t string) bool { return slices.Contains(values, t) })
	}
	return slices.Contains(values, fmt.Sprint(attribute))
}

// hasAddress reports whether a port has one of the addresses and one of the subnets of a
// filter.
func hasAddress(o Object, values []string) bool {
	want := map[string][]string{}
	for _, v := range values {
		key, value, _ := strings.Cut(v, "=")
		want[key] = append(want[key], value)
	}
	for key, any := range want {
		if !slices.ContainsFunc(objects(o["fixed_ips"]), func(a Object) bool { return slices.Contains(any, text(a, key)) }) {
			return false
		}
	}
	return true
}

// visible reports whether a caller sees an object.
func (s *Server) visible(res *resource, c caller, o Object) bool {
	if c.admin || o["project_id"] == c.project {
		return true
	}
	switch res.many {
	case "networks", "subnetpools", "qos/policies":
		return o["shared"] == true
	case "subnets":
		n := s.store["networks"].objects[text(o, "network_id")]
		return n != nil && n["shared"] == true
	case "ports":
		n := s.store["networks"].objects[text(o, "network_id")]
		return n != nil && n["project_id"] == c.project
	}
	return false
}

// view returns an object as a caller sees it: a member does not see bindings.
func view(c caller, o Object) Object {
	o = copyOf(o)
	if !c.admin {
		for _, hidden := range []string{"binding:host_id", "binding:profile", "binding:vif_type", "binding:vif_details"} {
			delete(o, hidden)
		}
	}
	return o
}

// pick returns only the fields of an object that were asked for.
func pick(o Object, fields []string) Object {
	if len(fields) == 0 {
		return o
	}
	out := Object{}
	for _, f := range fields {
		if v, ok := o[f]; ok {
			out[f] = v
		}
	}
	return out
}

// objects returns the objects of a list.
func objects(v any) []Object {
	list, _ := v.([]any)
	var out []Object
	for _, e := range list {
		if o, ok := e.(Object); ok {
			out = append(out, o)
		}
	}
	return out
}

// count returns the number of objects of a project.
func (s *Server) count(many, project string) int {
	n := 0
	for _, o := range s.store[many].objects {
		if o["project_id"] == project {
			n++
		}
	}
	return n
}
