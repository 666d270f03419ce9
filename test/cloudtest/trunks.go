package cloudtest

import (
	"net/http"
	"slices"
)

func (s *Server) createTrunk(c caller, o Object) *fault {
	parent := s.store["ports"].objects[text(o, "port_id")]
	if parent == nil || !s.visible(s.kinds["ports"], c, parent) {
		return s.kinds["ports"].notFound(text(o, "port_id"))
	}
	if s.trunkOf(text(o, "port_id")) != nil {
		return refuse(http.StatusConflict, "ParentPortInUse", "Port %s is currently in use and is not eligible for use as a parent port.", o["port_id"])
	}
	o["admin_state_up"], o["status"] = true, "ACTIVE"
	wanted := o["sub_ports"]
	o["sub_ports"] = []any{}
	_, f := s.addSubports(c, o, Object{"sub_ports": wanted})
	return f
}

func (s *Server) removeTrunk(_ caller, o Object) *fault {
	for _, p := range objects(o["sub_ports"]) {
		s.detach(text(p, "port_id"))
	}
	return nil
}

// trunkOf returns the trunk that a port belongs to, as parent or as subport.
func (s *Server) trunkOf(port string) Object {
	for _, t := range s.store["trunks"].objects {
		if t["port_id"] == port || isSubport(objects(t["sub_ports"]), port) {
			return t
		}
	}
	return nil
}

func (s *Server) addSubports(_ caller, o, body Object) (any, *fault) {
	wanted := objects(body["sub_ports"])
	for i, w := range wanted {
		if f := s.checkSubport(o, w); f != nil {
			return nil, f
		}
		for _, before := range wanted[:i] {
			if number(before, "segmentation_id") == number(w, "segmentation_id") {
				return nil, refuse(http.StatusBadRequest, "InvalidInput", "Invalid input for operation: Segmentation ID '%d' for '%s' is not unique.", number(w, "segmentation_id"), w["port_id"])
			}
		}
	}
	for _, w := range wanted {
		p := s.store["ports"].objects[text(w, "port_id")]
		p["device_owner"] = "trunk:subport"
		p["binding:profile"] = Object{"parent_name": o["port_id"], "tag": number(w, "segmentation_id")}
		p["binding:vif_type"] = "ovs"
		touch(p)
		s.activate(p)
		o["sub_ports"] = append(o["sub_ports"].([]any), Object{
			"port_id": w["port_id"], "segmentation_type": "vlan", "segmentation_id": number(w, "segmentation_id"),
		})
	}
	if len(wanted) > 0 {
		touch(o)
	}
	return o, nil
}

func (s *Server) checkSubport(o, w Object) *fault {
	id, vlan := text(w, "port_id"), number(w, "segmentation_id")
	if vlan < 1 || vlan > 4094 {
		return refuse(http.StatusBadRequest, "InvalidInput", "Invalid input for operation: Segmentation ID '%d' is not in range.", vlan)
	}
	p := s.store["ports"].objects[id]
	if p == nil {
		return s.kinds["ports"].notFound(id)
	}
	if t := s.trunkOf(id); t != nil {
		if t["port_id"] == id {
			return refuse(http.StatusConflict, "ParentPortInUse", "Port %s is currently in use and is not eligible for use as a parent port.", id)
		}
		return refuse(http.StatusConflict, "TrunkPortInUse", "Port %s is in use by another trunk.", id)
	}
	if device := text(p, "device_id"); device != "" {
		return refuse(http.StatusConflict, "PortInUse", "Unable to complete operation on port %s for network %s. Port already has an attached device %s.", id, p["network_id"], device)
	}
	for _, has := range objects(o["sub_ports"]) {
		if number(has, "segmentation_id") == vlan {
			return refuse(http.StatusConflict, "DuplicateSubPort", "segmentation_type vlan and segmentation_id %d already in use on trunk %s.", vlan, o["id"])
		}
	}
	return nil
}

func (s *Server) removeSubports(_ caller, o, body Object) (any, *fault) {
	wanted, has := objects(body["sub_ports"]), objects(o["sub_ports"])
	for _, w := range wanted {
		if !isSubport(has, text(w, "port_id")) {
			return nil, refuse(http.StatusNotFound, "SubPortNotFound", "SubPort %s on trunk %s could not be found.", w["port_id"], o["id"])
		}
	}
	left := []any{}
	for _, h := range has {
		if isSubport(wanted, text(h, "port_id")) {
			s.detach(text(h, "port_id"))
			continue
		}
		left = append(left, h)
	}
	o["sub_ports"] = left
	touch(o)
	return o, nil
}

// detach has a subport be an ordinary port, without the owner that it once had.
func (s *Server) detach(port string) {
	p := s.store["ports"].objects[port]
	if p == nil {
		return
	}
	p["device_owner"], p["binding:profile"], p["status"] = "", Object{}, "DOWN"
	s.bind(p)
	touch(p)
}

func (s *Server) getSubports(_ caller, o, _ Object) (any, *fault) {
	return Object{"sub_ports": slices.Clone(o["sub_ports"].([]any))}, nil
}
