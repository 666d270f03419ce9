package nad

import (
	"fmt"
	"slices"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// parentOptions are the options of the plugins whose link has a parent: macvlan, ipvlan
// and vlan.
type parentOptions struct {
	common
	Master          string `json:"master"`
	Mode            string `json:"mode"`   // macvlan and ipvlan
	VLANID          int32  `json:"vlanId"` // vlan
	MTU             int    `json:"mtu"`
	MAC             string `json:"mac"`        // macvlan
	BCQueueLen      uint32 `json:"bcqueuelen"` // macvlan
	LinkInContainer bool   `json:"linkInContainer"`
}

// parent reads the options that the three plugins share.
func (r *reader) parent(n *Network) parentOptions {
	var o parentOptions
	r.decode(&o)
	r.common(o.common, n)
	if o.Master == "" {
		r.bad("master", "", "must name the link of the node, as eth1: Fairlead does not guess the link")
	} else {
		r.link("master", o.Master)
	}
	r.refuse("linkInContainer", o.LinkInContainer, "remove it: the master is a link of the node")
	n.MTU = r.mtu(o.MTU)
	return o
}

// mode returns a mode, or the first of the modes if it is empty.
func (r *reader) mode(mode string, modes ...string) string {
	if mode == "" {
		return modes[0]
	}
	if !slices.Contains(modes, mode) {
		r.bad("mode", mode, fmt.Sprintf("must be one of %q", modes))
	}
	return mode
}

func readMacvlan(r *reader, n *Network) v1alpha1.Binding {
	o := r.parent(n)
	if o.MAC != "" {
		r.bad("mac", o.MAC, `is not served for macvlan: every pod would have it: remove it; a pod requests its own with "mac" in its annotation`)
	}
	if o.BCQueueLen != 0 {
		r.bad("bcqueuelen", o.BCQueueLen, "is not served for macvlan: remove it: the default of the kernel is in effect")
	}
	return v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{Parent: o.Master, Mode: r.mode(o.Mode, "bridge", "private", "vepa", "passthru")}}
}

func readIPVLAN(r *reader, n *Network) v1alpha1.Binding {
	o := r.parent(n)
	return v1alpha1.Binding{IPVLAN: &v1alpha1.IPVLANBinding{Parent: o.Master, Mode: r.mode(o.Mode, "l2", "l3", "l3s")}}
}

func readVLAN(r *reader, n *Network) v1alpha1.Binding {
	o := r.parent(n)
	if o.VLANID < 1 || o.VLANID > maxVLAN {
		r.bad("vlanId", o.VLANID, fmt.Sprintf("must be 1 to %d", maxVLAN))
	}
	return v1alpha1.Binding{VLAN: &v1alpha1.VLANBinding{Parent: o.Master, ID: o.VLANID}}
}
