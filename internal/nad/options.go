package nad

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// kind is a plugin that Fairlead serves in process.
type kind struct {
	// options are the JSON names of its own options.
	options []string
	// read reads the options, and sets MTU of the network.
	read func(r *reader, n *Network) v1alpha1.Binding
	// parentsMAC is true if its interfaces have the MAC of their parent.
	parentsMAC bool
	// device is true if runtimeConfig.deviceID names its device.
	device bool
}

// kinds are the plugins that Fairlead serves in process. Every other plugin is executed.
var kinds = map[string]kind{
	"bridge": {options: []string{
		"bridge", "isGateway", "isDefaultGateway", "forceAddress", "ipMasq", "ipMasqBackend", "mtu", "hairpinMode", "promiscMode",
		"vlan", "vlanTrunk", "preserveDefaultVlan", "macspoofchk", "enabledad", "disableContainerInterface", "portIsolation",
	}, read: readBridge},
	"macvlan":     {options: []string{"master", "mode", "mtu", "mac", "linkInContainer", "bcqueuelen"}, read: readMacvlan},
	"ipvlan":      {options: []string{"master", "mode", "mtu", "linkInContainer"}, read: readIPVLAN, parentsMAC: true},
	"vlan":        {options: []string{"master", "vlanId", "mtu", "linkInContainer"}, read: readVLAN},
	"host-device": {options: []string{"device", "hwaddr", "kernelpath", "pciBusID", "dpdkMode", "useInterfaceNetwork"}, read: readHostDevice, device: true},
	sriovType: {options: []string{
		"deviceID", "vlan", "vlanQoS", "vlanProto", "mac", "spoofchk", "trust", "link_state", "min_tx_rate", "max_tx_rate", "logLevel", "logFile",
	}, read: readSRIOV, device: true},
}

// commonOptions are the keys that every plugin may have.
var commonOptions = []string{
	"cniVersion", "cniVersions", "name", "type", "ipam", "dns", "capabilities", "args", "runtimeConfig", "prevResult",
	"disableCheck", "disableGC", "loadOnlyInlinedPlugins",
}

// linkName is the form of a link's name in the API.
var linkName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,14}$`)

// maxShown is the number of characters of a value that an error shows.
const maxShown = 64

// maxErrors is the number of errors that are reported at once.
const maxErrors = 8

// reader reads the options of one plugin, and collects the errors.
type reader struct {
	plugin
	// resource names the devices of the network; empty for none.
	resource string
	// static is the section of static addresses; nil for other types.
	static *static
	errs   []error
}

func (r *reader) ok() bool   { return len(r.errs) == 0 }
func (r *reader) err() error { return errors.Join(r.errs[:min(len(r.errs), maxErrors)]...) }

// bad adds an error about the value of an option.
func (r *reader) bad(option string, value any, want string) {
	r.errs = append(r.errs, fmt.Errorf("%s%s: %s: %s", r.path, option, shown(value), want))
}

// refuse adds an error if an option that Fairlead does not serve is set.
func (r *reader) refuse(option string, set bool, remedy string) {
	if set {
		r.bad(option, true, "is not served for "+r.kind+": "+remedy)
	}
}

// decode decodes the options into a struct. After an error the struct is not complete.
func (r *reader) decode(into any) {
	if err := json.Unmarshal(r.text, into); err != nil {
		r.errs = append(r.errs, explain(r.path, err))
	}
}

// link checks the name of a link.
func (r *reader) link(option, name string) {
	if !linkName.MatchString(name) {
		r.bad(option, name, "must be the name of a link: 1 to 15 of a-z, A-Z, 0-9, '_', '.', '-', beginning with a letter or digit")
	}
}

// mtu checks an MTU.
func (r *reader) mtu(mtu int) int32 {
	if mtu < 0 || mtu > 65535 {
		r.bad("mtu", mtu, "must be 0 to 65535")
		return 0
	}
	return int32(mtu)
}

// reserved refuses values that only a runtime may set, and those that belong to one pod.
// device allows runtimeConfig.deviceID.
func (r *reader) reserved(device bool) {
	var o struct {
		PrevResult    json.RawMessage `json:"prevResult"`
		RuntimeConfig json.RawMessage `json:"runtimeConfig"`
	}
	r.decode(&o)
	if nonempty(o.PrevResult) != nil {
		r.bad("prevResult", o.PrevResult, "is reserved for the runtime: remove it")
	}
	if nonempty(o.RuntimeConfig) == nil {
		return
	}
	keys := map[string]json.RawMessage{}
	if err := json.Unmarshal(o.RuntimeConfig, &keys); err != nil {
		r.errs = append(r.errs, explain(r.path+"runtimeConfig.", err))
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if !device || !strings.EqualFold(key, "deviceID") {
			r.bad("runtimeConfig."+clip(key), keys[key], "is reserved for the runtime: remove it; a pod requests such a value in its annotation")
		}
	}
}

// common has the options of every plugin in process: DNS, and arguments, to which a pod
// adds its own.
type common struct {
	DNS  *v1alpha1.DNS `json:"dns"`
	Args struct {
		CNI struct {
			MAC string   `json:"mac"`
			IPs []string `json:"ips"`
		} `json:"cni"`
	} `json:"args"`
}

func (r *reader) common(c common, n *Network) {
	if dns := r.dns("dns", c.DNS); dns != nil {
		n.DNS = dns
	}
	if c.Args.CNI.MAC != "" {
		r.bad("args.cni.mac", c.Args.CNI.MAC, `every pod would have it: remove it; a pod requests its own with "mac" in its annotation`)
	}
	if len(c.Args.CNI.IPs) > 0 {
		r.bad("args.cni.ips", c.Args.CNI.IPs[0], `every pod would have it: remove it; a pod requests its own with "ips" in its annotation`)
	}
}

// maxUnknown is the number of unknown options of a section that are remarked.
const maxUnknown = 8

// unknown returns a remark on each key of a section that is not among the known ones.
func (r *reader) unknown(section string, raw []byte, known []string) []string {
	keys := map[string]json.RawMessage{}
	if err := json.Unmarshal(raw, &keys); err != nil {
		return nil // the caller reads it again, and reports the error
	}
	of := r.kind
	if section != "" {
		of = r.ipamType
	}
	var out []string
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		// encoding/json ignores case.
		if len(out) < maxUnknown && !slices.ContainsFunc(known, func(k string) bool { return strings.EqualFold(k, key) }) {
			out = append(out, fmt.Sprintf("%q: not an option of %s, and ignored", r.path+section+clip(key), of))
		}
	}
	return out
}

// shown returns a value as an error shows it.
func shown(value any) string {
	switch v := value.(type) {
	case string:
		return fmt.Sprintf("%q", clip(v))
	case json.RawMessage:
		return clip(strings.ToValidUTF8(string(v), "?"))
	default:
		return fmt.Sprint(v)
	}
}

// clip returns the beginning of a long text.
func clip(text string) string {
	if runes := []rune(text); len(runes) > maxShown {
		return string(runes[:maxShown]) + "..."
	}
	return text
}

// explain returns an error of encoding/json in the terms of a configuration: with the
// path of the option, and the type that it must have.
func explain(path string, err error) error {
	var t *json.UnmarshalTypeError
	if !errors.As(err, &t) {
		return fmt.Errorf("%s: %w", strings.TrimSuffix(path, "."), err)
	}
	want := map[reflect.Kind]string{
		reflect.String: "a string", reflect.Bool: "true or false", reflect.Slice: "a list", reflect.Map: "an object", reflect.Struct: "an object",
	}[t.Type.Kind()]
	if want == "" {
		want = "a whole number"
	}
	return fmt.Errorf("%s: a JSON %s: must be %s", strings.TrimSuffix(path+t.Field, "."), t.Value, want)
}
