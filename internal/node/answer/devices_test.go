package answer

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/test/nodetest"
)

func TestEnterDevices(t *testing.T) {
	allocated := map[string][]string{
		"intel.com/a": {"0000:3b:02.1", "0000:3b:02.2"},
		"intel.com/b": {"eth5"},
		"intel.com/c": {"a name that no link has"},
	}
	for _, tc := range []struct {
		name string
		// wants lists the interfaces as "resource" or "resource=device", with "+vf" behind
		// the resource for a virtual function.
		wants []string
		want  []string
		says  string
	}{
		{name: "none", wants: []string{}},
		{name: "one", wants: []string{"intel.com/a"}, want: []string{"0000:3b:02.1"}},
		{name: "two, and one of another resource", wants: []string{"intel.com/a", "intel.com/b", "intel.com/a"}, want: []string{"0000:3b:02.1", "eth5", "0000:3b:02.2"}},
		{name: "a named one first", wants: []string{"intel.com/a", "intel.com/a=0000:3b:02.1"}, want: []string{"0000:3b:02.2", "0000:3b:02.1"}},
		{name: "a named one in capitals", wants: []string{"intel.com/a=0000:3B:02.1", "intel.com/a"}, want: []string{"0000:3b:02.1", "0000:3b:02.2"}},
		{name: "more than there are", wants: []string{"intel.com/b", "intel.com/b"}, says: "interface net2: the pod has 1 devices of resource intel.com/b, eth5"},
		{name: "not requested", wants: []string{"intel.com/x"}, says: "interface net1: the pod has no device of resource intel.com/x: request it"},
		{name: "another's device", wants: []string{"intel.com/a=0000:3b:02.7"}, says: `deviceID: "0000:3b:02.7": must be a device of resource intel.com/a that the pod has: 0000:3b:02.1, 0000:3b:02.2`},
		{name: "a device twice", wants: []string{"intel.com/b=eth5", "intel.com/b=eth5"}, says: `interface net2: deviceID: "eth5": another interface`},
		{name: "a virtual function keeps its settings", wants: []string{"intel.com/a+vf", "intel.com/a"}, want: []string{"0000:3b:02.1+vf", "0000:3b:02.2"}},
		{name: "a virtual function by its name", wants: []string{"intel.com/b+vf"}, says: `device "eth5" of resource intel.com/b: must be a PCI address`},
		{name: "no link", wants: []string{"intel.com/c"}, says: "must be a PCI address"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			vf := &v1alpha1.VFSettings{Trust: new(true)}
			pa := nodetest.Attachment("p", "u1", append([]string{"eth0"}, []string{"net1", "net2", "net3"}[:len(tc.wants)]...)...)
			for n, want := range tc.wants {
				resource, device, _ := strings.Cut(want, "=")
				b := &v1alpha1.HostDeviceBinding{Resource: &v1alpha1.DeviceResource{Name: strings.TrimSuffix(resource, "+vf"), Device: device}}
				if strings.HasSuffix(resource, "+vf") {
					b.VF = vf
				}
				pa.Spec.Interfaces[n+1].Binding = v1alpha1.Binding{HostDevice: b}
			}
			if NeedDevices(pa.Spec.Interfaces...) != (len(tc.wants) > 0) {
				t.Error("NeedDevices is wrong")
			}
			before := pa.DeepCopy()
			var interfaces []ledger.Interface
			for _, i := range pa.Spec.Interfaces {
				interfaces = append(interfaces, ledger.Interface{Interface: i})
			}
			err := EnterDevices(interfaces, allocated)
			if (err != nil) != (tc.says != "") || err != nil && (!errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), tc.says)) {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, pa); diff != "" {
				t.Errorf("the PodAttachment, which is the cache's, has changed:\n%s", diff)
			}
			var got []string
			for _, i := range interfaces[1:] {
				if d := i.Binding.HostDevice; err == nil {
					id := d.PCIAddress + d.Name
					if d.VF != nil {
						id += "+vf"
					}
					got = append(got, id)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
