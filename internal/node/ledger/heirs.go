package ledger

import (
	"slices"
	"strings"
)

// heirs knows which sandboxes have addresses that are kept for a successor: its
// container IDs by claim. The successor may be on this node while the
// predecessor's links still are, so having the record is not enough.
type heirs map[string]map[string]struct{}

// claims are the names of the claims that a sandbox's addresses are kept under,
// each once, in order.
func (r *Record) claims() []string {
	var names []string
	for _, i := range r.Interfaces {
		if i.Claim != "" {
			names = append(names, i.Claim)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Identity is what the ADDs of a pod and of its successors wait for each other
// by; empty for most pods.
func (r *Record) Identity() string { return strings.Join(r.claims(), ",") }

func (h heirs) add(r *Record) {
	for _, name := range r.claims() {
		if h[name] == nil {
			h[name] = map[string]struct{}{}
		}
		h[name][r.ContainerID] = struct{}{}
	}
}

func (h heirs) remove(r *Record) {
	for _, name := range r.claims() {
		delete(h[name], r.ContainerID)
		if len(h[name]) == 0 {
			delete(h, name)
		}
	}
}

// other returns another sandbox that has addresses of one of r's claims, or "".
func (h heirs) other(r *Record) string {
	for _, name := range r.claims() {
		for id := range h[name] {
			if id != r.ContainerID {
				return id
			}
		}
	}
	return ""
}
