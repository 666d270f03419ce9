package v1alpha1

import "net/netip"

// rules are the CEL rules for the spec of a new PodAttachment, by their text in the CRD.
var rules = map[string]func(v any) bool{
	"isCIDR(self)":         isCIDR,
	"isIP(self)":           isIP,
	"self.min <= self.max": ordered,
	"!has(self.max) || !has(self.min) || self.min <= self.max": ordered,
	"has(self.parent) != has(self.parentMAC)":                  func(v any) bool { return set(v, "parent", "parentMAC") == 1 },
	"[has(self.name), has(self.mac), has(self.kernelPath), has(self.pciAddress), has(self.resource)].filter(set, set).size() == 1": func(v any) bool {
		return set(v, "name", "mac", "kernelPath", "pciAddress", "resource") == 1
	},
	"!has(self.vf) || has(self.pciAddress) || has(self.resource)": func(v any) bool {
		return set(v, "vf") == 0 || set(v, "pciAddress", "resource") > 0
	},
	"self.id > 0 || !has(self.qos) && !has(self.protocol)": func(v any) bool {
		return number(v, "id") > 0 || set(v, "qos", "protocol") == 0
	},
	"self.filter(i, has(i.default) && i.default).size() <= 1": func(v any) bool {
		defaults := 0
		for _, i := range v.([]any) {
			defaults += set(i, "default") // false is left out
		}
		return defaults <= 1
	},
	"!has(self.binding.ovs) || has(self.mac) && size(self.mac) > 0 && has(self.mtu) && self.mtu > 0": func(v any) bool {
		return set(v.(map[string]any)["binding"], "ovs") == 0 || set(v, "mac") == 1 && number(v, "mtu") > 0
	},
}

// isCIDR and isIP accept the same texts as the API server's functions
// (k8s.io/apiserver/pkg/cel/library).
func isCIDR(v any) bool {
	p, err := netip.ParsePrefix(v.(string))
	return err == nil && !p.Addr().Is4In6()
}

func isIP(v any) bool {
	a, err := netip.ParseAddr(v.(string))
	return err == nil && a.Zone() == "" && !a.Is4In6()
}

// ordered reports whether min is not above max, if both are set.
func ordered(v any) bool {
	return set(v, "min", "max") < 2 || number(v, "min") <= number(v, "max")
}

// set returns how many of some fields are set.
func set(v any, fields ...string) (n int) {
	for _, f := range fields {
		if _, ok := v.(map[string]any)[f]; ok {
			n++
		}
	}
	return n
}

// number returns a field; 0 if it is not set.
func number(v any, field string) float64 {
	n, _ := v.(map[string]any)[field].(float64)
	return n
}

const (
	interfaceText = "must have 1 to 15 of a-z, A-Z, 0-9, '_', '.', '-', and begin with a letter or digit"
	macText       = "must be six bytes, as 02:23:45:67:89:ab"
)

// patternTexts describe the texts that match a pattern of the schema.
var patternTexts = map[string]string{
	`^[a-zA-Z0-9-]{1,64}$`:                                                                 "must have 1 to 64 of a-z, A-Z, 0-9 and '-'",
	`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`:                                                 "must be the name of a namespace",
	`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,14}$`:                                                    interfaceText,
	`^([a-zA-Z0-9][a-zA-Z0-9_.-]{0,14})?$`:                                                 interfaceText,
	`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$`:                                              "must be the name of a domain: 1 to 63 of a-z, 0-9 and '-'",
	`^([0-9a-f]{2}(:[0-9a-f]{2}){5})?$`:                                                    macText,
	`^[0-9a-f]{2}(:[0-9a-f]{2}){5}$`:                                                       macText,
	`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`:                                          "must be the ID of a port, as 3f1c2d4e-0000-4000-8000-0123456789ab",
	`^/sys/devices/[a-zA-Z0-9_.:/-]{1,240}$`:                                               "must be a path below /sys/devices",
	`^[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`:                                        "must be a PCI address, as 0000:3b:00.1",
	`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/[a-zA-Z0-9]([a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?$`: "must be the name of a device plugin's resource, as intel.com/sriov_a",
	`^([a-zA-Z0-9][a-zA-Z0-9_.:-]{0,127})?$`:                                               "must have at most 128 of a-z, A-Z, 0-9, '_', '.', ':', '-', and begin with a letter or digit",
}
