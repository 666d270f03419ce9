package cloudtest

import (
	"net/http"
	"slices"
)

// Bindings returns the hosts on which a port is bound, the active one first.
func (s *Server) Bindings(port string) (hosts []string) {
	s.locked(func() {
		if o := s.store["ports"].objects[port]; o != nil {
			hosts = append([]string{text(o, "binding:host_id")}, s.further[port]...)
		}
	})
	return hosts
}

// OneBinding has the cloud answer as one without further bindings of ports.
func (s *Server) OneBinding() { s.locked(func() { s.oneBinding = true }) }

// serveBindings serves the bindings of a port.
func (s *Server) serveBindings(r *http.Request, c caller, o Object, parts []string, body Object) (int, any, *fault) {
	switch {
	case s.oneBinding:
		return 0, nil, refuse(http.StatusNotFound, "HTTPNotFound", "The resource could not be found.")
	case !c.admin:
		return 0, nil, forbidden("rule:get_port_binding")
	}
	id, host := text(o, "id"), text(o, "binding:host_id")
	switch {
	case r.Method == http.MethodGet && len(parts) == 0:
		all := []Object{{"host": host, "status": "ACTIVE", "vif_type": o["binding:vif_type"]}}
		for _, h := range s.further[id] {
			all = append(all, Object{"host": h, "status": "INACTIVE", "vif_type": "ovs"})
		}
		return http.StatusOK, Object{"bindings": all}, nil
	case r.Method == http.MethodPost && len(parts) == 0:
		one, _ := body["binding"].(Object)
		answer, f := s.addBinding(o, text(one, "host"))
		return http.StatusCreated, Object{"binding": answer}, f
	case r.Method == http.MethodPut && len(parts) == 2 && parts[1] == "activate":
		return s.activateBinding(c, o, parts[0])
	case r.Method == http.MethodDelete && len(parts) == 1:
		if parts[0] != host && !slices.Contains(s.further[id], parts[0]) {
			return 0, nil, noBinding(id, parts[0])
		}
		s.further[id] = slices.DeleteFunc(s.further[id], func(h string) bool { return h == parts[0] })
		if parts[0] == host { // Neutron joins ports with their bindings, and finds none
			s.forget(s.kinds["ports"], o)
		}
		touch(o)
		return http.StatusNoContent, nil, nil
	}
	return 0, nil, refuse(http.StatusNotFound, "HTTPNotFound", "The resource could not be found.")
}

func (s *Server) addBinding(o Object, host string) (Object, *fault) {
	id := text(o, "id")
	next := copyOf(o)
	next["binding:host_id"] = host
	s.bind(next)
	switch {
	case host == text(o, "binding:host_id") || slices.Contains(s.further[id], host):
		return nil, refuse(http.StatusConflict, "PortBindingAlreadyExists", "Binding for port %s on host %s already exists.", id, host)
	case next["binding:vif_type"] != "ovs":
		return nil, refuse(http.StatusInternalServerError, "PortBindingError", "Binding for port %s on host %s could not be created or updated.", id, host)
	}
	s.further[id] = append(s.further[id], host)
	touch(o)
	return Object{"host": host, "status": "INACTIVE", "vif_type": "ovs"}, nil
}

func (s *Server) activateBinding(c caller, o Object, host string) (int, any, *fault) {
	id, was := text(o, "id"), text(o, "binding:host_id")
	switch {
	case host == was:
		return 0, nil, refuse(http.StatusConflict, "PortBindingAlreadyActive", "Binding for port %s on host %s is already active.", id, host)
	case !slices.Contains(s.further[id], host):
		return 0, nil, noBinding(id, host)
	}
	s.further[id] = append(slices.DeleteFunc(s.further[id], func(h string) bool { return h == host }), was)
	if f := s.change(s.kinds["ports"], c, o, Object{"binding:host_id": host}); f != nil {
		return 0, nil, f
	}
	return http.StatusOK, Object{"host": host, "status": "ACTIVE", "vif_type": o["binding:vif_type"]}, nil
}

func noBinding(port, host string) *fault {
	return refuse(http.StatusNotFound, "PortBindingNotFound", "Binding for port %s for host %s could not be found.", port, host)
}
