package pod

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
)

func TestNetworkStatus(t *testing.T) {
	eth0 := v1alpha1.Interface{
		Name: "eth0", Network: v1alpha1.DefaultNetwork, Default: true, Addresses: []string{"10.244.0.5/32", "fd00::5/128"}, Gateways: []string{"169.254.1.1", "fe80::1"},
		Binding: v1alpha1.Binding{Routed: &v1alpha1.RoutedBinding{}},
	}
	net1 := v1alpha1.Interface{
		Name: "net1", Network: "blue/lan", Addresses: []string{"10.9.0.7/24"}, MAC: "02:00:00:00:00:01",
		DNS:     &v1alpha1.DNS{Nameservers: []string{"10.9.0.1"}, Search: []string{"lan"}},
		Binding: v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{Parent: "bond0", Mode: "bridge"}},
	}
	net2 := v1alpha1.Interface{Name: "net2", Network: "blue/vf", Binding: v1alpha1.Binding{HostDevice: &v1alpha1.HostDeviceBinding{PCIAddress: "0000:3b:00.1"}}}
	theirs := v1alpha1.Interface{Name: "net1", Network: "blue/lan", Binding: v1alpha1.Binding{AddressOnly: &v1alpha1.AddressOnlyBinding{}}}
	internal := net1
	internal.Internal = true
	links := []v1alpha1.SandboxLink{
		{Name: "eth0", MAC: "02:00:00:00:00:02", MTU: 1450},
		{Name: "net1", MAC: "02:00:00:00:00:01", MTU: 9000},
		{Name: "net2", MAC: "02:00:00:00:00:03", MTU: 1500, PCIAddress: "0000:3b:00.1", Addresses: []string{"192.0.2.9/24"}},
	}
	attached := &v1alpha1.Sandbox{State: v1alpha1.SandboxAttached, Links: links}
	for _, tc := range []struct {
		name       string
		interfaces []v1alpha1.Interface
		sandbox    *v1alpha1.Sandbox
		want       string
	}{
		{name: "the default interface alone", interfaces: []v1alpha1.Interface{eth0}, sandbox: attached},
		{name: "the default interface and an internal one", interfaces: []v1alpha1.Interface{eth0, internal}, sandbox: attached},
		{
			name: "the default interface and an internal one, after a change", interfaces: []v1alpha1.Interface{internal, eth0}, sandbox: &v1alpha1.Sandbox{State: v1alpha1.SandboxAttached, Generation: 2},
			want: `[{"name":"fairlead","interface":"eth0","ips":["10.244.0.5","fd00::5"],"default":true,"dns":{},"gateway":["169.254.1.1","fe80::1"]}]`,
		},
		{name: "not plugged yet", interfaces: []v1alpha1.Interface{eth0, net1}},
		{name: "not plugged any more", interfaces: []v1alpha1.Interface{eth0, net1}, sandbox: &v1alpha1.Sandbox{State: v1alpha1.SandboxDetached, Links: links}},
		{name: "of a node that does not report its links", interfaces: []v1alpha1.Interface{eth0, net1}, sandbox: &v1alpha1.Sandbox{State: v1alpha1.SandboxAttached}},
		{name: "another program's", interfaces: []v1alpha1.Interface{eth0, theirs}, sandbox: attached},
		{
			name: "several, the default one last", interfaces: []v1alpha1.Interface{net1, net2, eth0}, sandbox: attached,
			want: `[{"name":"fairlead","interface":"eth0","ips":["10.244.0.5","fd00::5"],"mac":"02:00:00:00:00:02","mtu":1450,"default":true,"dns":{},"gateway":["169.254.1.1","fe80::1"]},` +
				`{"name":"blue/lan","interface":"net1","ips":["10.9.0.7"],"mac":"02:00:00:00:00:01","mtu":9000,"dns":{"nameservers":["10.9.0.1"],"search":["lan"]}},` +
				`{"name":"blue/vf","interface":"net2","ips":["192.0.2.9"],"mac":"02:00:00:00:00:03","mtu":1500,"dns":{},"device-info":{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:3b:00.1"}}}]`,
		},
		{
			name: "one that is not plugged yet", interfaces: []v1alpha1.Interface{eth0, net1}, sandbox: &v1alpha1.Sandbox{State: v1alpha1.SandboxAttached, Generation: 2},
			want: `[{"name":"fairlead","interface":"eth0","ips":["10.244.0.5","fd00::5"],"default":true,"dns":{},"gateway":["169.254.1.1","fe80::1"]}]`,
		},
		{
			name: "the last one is unplugged", interfaces: []v1alpha1.Interface{eth0}, sandbox: &v1alpha1.Sandbox{State: v1alpha1.SandboxAttached, Generation: 4},
			want: `[{"name":"fairlead","interface":"eth0","ips":["10.244.0.5","fd00::5"],"default":true,"dns":{},"gateway":["169.254.1.1","fe80::1"]}]`,
		},
		{
			name: "one is unplugged, and another is not plugged", interfaces: []v1alpha1.Interface{eth0, net1, net2},
			sandbox: &v1alpha1.Sandbox{State: v1alpha1.SandboxAttached, Generation: 3, Links: links[:1:1]},
			want:    `[{"name":"fairlead","interface":"eth0","ips":["10.244.0.5","fd00::5"],"mac":"02:00:00:00:00:02","mtu":1450,"default":true,"dns":{},"gateway":["169.254.1.1","fe80::1"]}]`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := &v1alpha1.PodAttachment{Spec: v1alpha1.PodAttachmentSpec{Interfaces: tc.interfaces}, Status: v1alpha1.PodAttachmentStatus{Sandbox: tc.sandbox}}
			got, err := NetworkStatus(&corev1.Pod{}, r)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
