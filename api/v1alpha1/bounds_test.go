package v1alpha1

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"fairlead.dev/fairlead/api/v1alpha1/form"
)

// samples returns valid attachments that together have every field.
func samples() []*PodAttachment {
	const mac, port = "02:23:45:67:89:ab", "3f1c2d4e-0000-4000-8000-0123456789ab"
	l := &PluginList{Name: "net-a", CNIVersion: "1.0.0", Plugins: []string{`{"type":"tuning"}`}, RuntimeConfig: "{}", Args: "{}"}
	vf := &VFSettings{VLAN: &VFVLAN{ID: 7, QoS: 3, Protocol: "802.1ad"}, SpoofCheck: new(true), Trust: new(true), LinkState: VFLinkEnable, Rate: &VFRate{Min: 1, Max: 2}}
	var out []*PodAttachment
	for _, b := range []Binding{
		{AddressOnly: &AddressOnlyBinding{}},
		{Delegate: l},
		{OVS: &OVSBinding{Bridge: "br-int", PortID: port}},
		{Routed: &RoutedBinding{Of: []string{"192.0.2.7", "2001:db8::7"}}},
		{Bridge: &BridgeBinding{Name: "br0", Create: true, Addresses: []string{"10.0.0.1/24"}, VLAN: 7, Trunk: []VLANRange{{Min: 2, Max: 9}}, Promiscuous: true, NoHairpin: true, Isolated: true, SourceCheck: SourceMAC}},
		{Macvlan: &MacvlanBinding{Parent: "bond0", PortID: port, Mode: "vepa"}},
		{Macvlan: &MacvlanBinding{ParentMAC: mac, Mode: "vepa"}},
		{VLAN: &VLANBinding{Parent: "bond0", PortID: port, ID: 7}},
		{VLAN: &VLANBinding{ParentMAC: mac, ID: 7}},
		{IPVLAN: &IPVLANBinding{Parent: "bond0", Mode: "l2"}},
		{HostDevice: &HostDeviceBinding{Name: "ens1"}},
		{HostDevice: &HostDeviceBinding{MAC: mac}},
		{HostDevice: &HostDeviceBinding{KernelPath: "/sys/devices/pci0000:00"}},
		{HostDevice: &HostDeviceBinding{PCIAddress: "0000:3b:02.1", VF: vf}},
		{HostDevice: &HostDeviceBinding{Resource: &DeviceResource{Name: "intel.com/sriov_a", Device: "a"}, VF: vf}},
	} {
		a := maker{}.right()
		a.Spec.APIUID, a.Spec.NodeUID, a.Spec.PodNamespace, a.Spec.Plug, a.Spec.Unplug = "a-1", "b-2", "shop", []string{"net7"}, []string{"net8"}
		i := &a.Spec.Interfaces[0]
		i.Domain, i.Pool, i.Claim, i.Gateways, i.Routes = "lan", "lan", "shop/web-0", []string{"10.0.0.1"}, []Route{{Destination: "10.0.0.0/8", Gateway: "10.0.0.1"}}
		i.MAC, i.MTU, i.WaitForActive, i.Binding, i.Chain = "fa:16:3e:00:00:01", 1442, true, b, l
		i.DNS = &DNS{Domain: "cluster.local", Nameservers: []string{"10.0.0.10"}, Search: []string{"svc"}, Options: []string{"ndots:5"}}
		out = append(out, a)
	}
	return out
}

// bounds calls try with each field of v beside, on and beyond its bounds, one at a time, but
// for the fields in done. put replaces v.
func bounds(path string, s *apiextensionsv1.JSONSchemaProps, v any, done map[string]bool, put func(any), try func(path string)) {
	with := func(values ...any) {
		if done[path] {
			return
		}
		for _, other := range values {
			put(other)
			try(path)
		}
		put(v)
	}
	switch v := v.(type) {
	case string:
		for _, other := range nasty {
			with(other)
		}
		if n := s.MaxLength; n != nil {
			with(strings.Repeat("a", int(*n)), strings.Repeat("a", int(*n)+1), strings.Repeat("é", int(*n)), strings.Repeat("é", int(*n)+1))
		}
		for _, e := range s.Enum {
			with(strings.Trim(string(e.Raw), `"`))
		}
	case float64:
		for _, n := range []*float64{s.Minimum, s.Maximum} {
			if n != nil {
				with(*n-1, *n, *n+1)
			}
		}
	case []any:
		with([]any{}, append(slices.Clone(v), v[0]))
		for _, more := range []int64{0, 1} {
			list := slices.Repeat(v, int(*s.MaxItems+more))
			for n := range list { // elements differ where they have to
				switch e := list[n].(type) {
				case string:
					if s.XListType != nil && *s.XListType == "set" {
						list[n] = fmt.Sprint("net", n)
					}
				case map[string]any:
					if list[n] = maps.Clone(e); e["name"] != nil {
						list[n].(map[string]any)["name"] = fmt.Sprint("net", n)
						delete(list[n].(map[string]any), "default")
					}
				}
			}
			with(list)
		}
		bounds(path+"[]", s.Items.Schema, v[0], done, func(o any) { v[0] = o }, try)
	case map[string]any:
		for name, field := range v {
			p := s.Properties[name]
			if !done[path+"."+name] {
				delete(v, name)
				try(path)
				v[name] = field
			}
			bounds(path+"."+name, &p, field, done, func(o any) { v[name] = o }, try)
		}
	}
}

// Validate accepts each value of a field that the CRD accepts, and no other.
func TestEachBoundIsTheSchemas(t *testing.T) {
	s := newServer(t)
	crd, err := readCRD("fairlead.dev_podattachments.yaml")
	if err != nil {
		t.Fatal(err)
	}
	schema := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	tried, refused := map[string]bool{}, 0
	for _, a := range samples() {
		if err := a.Spec.Validate(); err != nil {
			t.Fatalf("%v\n%+v", err, a.Spec)
		}
		raw, err := json.Marshal(a.Spec)
		if err != nil {
			t.Fatal(err)
		}
		var spec any
		if err := json.Unmarshal(raw, &spec); err != nil {
			t.Fatal(err)
		}
		bounds("spec", &schema, spec, maps.Clone(tried), func(any) {}, func(path string) {
			tried[path] = true
			changed := *a
			changed.Spec = PodAttachmentSpec{}
			raw, err := json.Marshal(spec)
			if err == nil {
				err = json.Unmarshal(raw, &changed.Spec)
			}
			if err != nil {
				t.Fatal(err)
			}
			err = changed.Spec.Validate()
			if why := s.refuses(t, &changed); (err == nil) != (why == "") {
				t.Errorf("%s: Validate says %v, the API server %q\n%s", path, err, why, raw)
			}
			if err != nil {
				refused++
			}
		})
	}
	for _, path := range bounded(t, "spec", &schema) {
		if !tried[path] {
			t.Errorf("no sample has %s", path)
		}
	}
	if refused < 500 {
		t.Errorf("%d refused: that is no sample", refused)
	}
}

// bounded returns the paths of all fields with bounds. Each text and list must have one, and
// each rule and pattern of the schema must be known.
func bounded(t *testing.T, path string, s *apiextensionsv1.JSONSchemaProps) (out []string) {
	for _, r := range s.XValidations {
		if form.Rules[r.Rule] == nil && !strings.Contains(r.Rule, "oldSelf") {
			t.Errorf("%s: Validate does not know the rule %q", path, r.Rule)
		}
	}
	if s.Pattern != "" && form.PatternTexts[s.Pattern] == "" {
		t.Errorf("%s: no text for pattern %s", path, s.Pattern)
	}
	switch s.Type {
	case "string":
		if s.MaxLength == nil && s.Pattern == "" && len(s.Enum) == 0 {
			t.Errorf("%s has no bound", path)
		}
		out = append(out, path)
	case "integer":
		out = append(out, path)
	case "array":
		if s.MaxItems == nil {
			t.Errorf("%s has no bound", path)
		}
		out = append(append(out, path), bounded(t, path+"[]", s.Items.Schema)...)
	}
	for name, p := range s.Properties {
		out = append(out, bounded(t, path+"."+name, &p)...)
	}
	return out
}

// The controller validates each record before it takes anything. The figures for the
// embedded CRD have neither its CEL rules nor the decision which field an error names.
func BenchmarkValidate(b *testing.B) {
	a := maker{}.right()
	b.Run("here", func(b *testing.B) {
		for b.Loop() {
			if err := a.Spec.Validate(); err != nil {
				b.Fatal(err)
			}
		}
	})
	s := newServer(b)
	b.Run("embedded CRD", func(b *testing.B) {
		for b.Loop() {
			u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(a)
			if err != nil {
				b.Fatal(err)
			}
			if result := s.validator.Validate(u); !result.IsValid() {
				b.Fatal(result.AsError())
			}
		}
	})
}
