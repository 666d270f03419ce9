package nad

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// sriovType is the type of networks of virtual functions.
const sriovType = "sriov"

type sriovOptions struct {
	common
	DeviceID      string `json:"deviceID"`
	VLAN          *int32 `json:"vlan"`
	VLANQoS       *int32 `json:"vlanQoS"`
	VLANProto     string `json:"vlanProto"`
	MAC           string `json:"mac"`
	SpoofChk      string `json:"spoofchk"`
	Trust         string `json:"trust"`
	LinkState     string `json:"link_state"`
	MinTxRate     *int32 `json:"min_tx_rate"`
	MaxTxRate     *int32 `json:"max_tx_rate"`
	RuntimeConfig struct {
		DeviceID string `json:"deviceID"`
	} `json:"runtimeConfig"`
}

// readSRIOV reads the options of sriov. An option that is absent leaves the setting of the
// virtual function as it is, as in the reference plugin.
func readSRIOV(r *reader, n *Network) v1alpha1.Binding {
	var o sriovOptions
	r.decode(&o)
	r.common(o.common, n)
	if o.MAC != "" {
		r.bad("mac", o.MAC, `every pod would have it: remove it; a pod requests its own with "mac" in its annotation`)
	}
	d := &v1alpha1.HostDeviceBinding{VF: &v1alpha1.VFSettings{
		VLAN: r.vfVLAN(o), SpoofCheck: r.onOff("spoofchk", o.SpoofChk), Trust: r.onOff("trust", o.Trust), LinkState: r.vfLinkState(o.LinkState), Rate: r.vfRate(o),
	}}
	switch id := cmp.Or(o.RuntimeConfig.DeviceID, o.DeviceID); {
	case r.resource != "" && id != "":
		r.bad("deviceID", id, "must not stand beside the annotation "+AnnotationResource+", by which the kubelet chooses the device: remove one of them")
	case r.resource != "":
		d.Resource = &v1alpha1.DeviceResource{Name: r.resource}
	case id == "":
		r.bad("deviceID", "", "must be the PCI address of the virtual function, as 0000:3b:02.1, or the annotation "+AnnotationResource+" must name the resource of a device plugin")
	default:
		d.PCIAddress = strings.ToLower(id)
		if !pciAddress.MatchString(d.PCIAddress) {
			r.bad("deviceID", id, "must be a PCI address, as 0000:3b:02.1")
		}
	}
	return v1alpha1.Binding{HostDevice: d}
}

// vfVLAN returns the VLAN of a virtual function, nil if none is given.
func (r *reader) vfVLAN(o sriovOptions) *v1alpha1.VFVLAN {
	if o.VLAN == nil {
		if o.VLANQoS != nil {
			r.bad("vlanQoS", *o.VLANQoS, "needs the option vlan: add it, or remove vlanQoS")
		}
		if o.VLANProto != "" {
			r.bad("vlanProto", o.VLANProto, "needs the option vlan: add it, or remove vlanProto")
		}
		return nil
	}
	v := &v1alpha1.VFVLAN{ID: *o.VLAN}
	if v.ID < 0 || v.ID > maxVLAN {
		r.bad("vlan", v.ID, fmt.Sprintf("must be 0 to %d; 0 is no VLAN", maxVLAN))
	}
	if o.VLANQoS != nil {
		v.QoS = *o.VLANQoS
	}
	if v.QoS < 0 || v.QoS > 7 || v.QoS > 0 && v.ID == 0 {
		r.bad("vlanQoS", v.QoS, "must be 0 to 7, and 0 without a VLAN")
	}
	switch proto := strings.ToLower(o.VLANProto); {
	case proto == "" || proto == "802.1q":
	case proto == "802.1ad" && v.ID != 0:
		v.Protocol = "802.1ad"
	default:
		r.bad("vlanProto", o.VLANProto, `must be "802.1q" or "802.1ad", and "802.1q" without a VLAN`)
	}
	return v
}

func (r *reader) onOff(option, text string) *bool {
	switch text {
	case "":
		return nil
	case "on", "off":
		return new(text == "on")
	}
	r.bad(option, text, `must be "on" or "off"`)
	return nil
}

func (r *reader) vfLinkState(text string) v1alpha1.VFLinkState {
	states := map[string]v1alpha1.VFLinkState{"": "", "auto": v1alpha1.VFLinkAuto, "enable": v1alpha1.VFLinkEnable, "disable": v1alpha1.VFLinkDisable}
	state, ok := states[text]
	if !ok {
		r.bad("link_state", text, `must be "auto", "enable" or "disable"`)
	}
	return state
}

// vfRate returns the bandwidth of a virtual function, nil if none is given.
func (r *reader) vfRate(o sriovOptions) *v1alpha1.VFRate {
	if o.MinTxRate == nil && o.MaxTxRate == nil {
		return nil
	}
	rate := &v1alpha1.VFRate{}
	if o.MinTxRate != nil {
		rate.Min = *o.MinTxRate
	}
	if o.MaxTxRate != nil {
		rate.Max = *o.MaxTxRate
	}
	if rate.Max < 0 {
		r.bad("max_tx_rate", rate.Max, "must be a number of Mbit/s; 0 is no limit")
	}
	if rate.Min < 0 || rate.Max > 0 && rate.Min > rate.Max {
		r.bad("min_tx_rate", rate.Min, "must be a number of Mbit/s, and not above max_tx_rate")
	}
	return rate
}

// settingNeeds returns the need of a network that changes settings of virtual functions: the
// VLAN that it chooses may belong to others.
func settingNeeds(s *v1alpha1.VFSettings) []Need {
	if s == nil || reflect.ValueOf(*s).IsZero() {
		return nil
	}
	return []Need{{NeedPlugin, sriovType}}
}
