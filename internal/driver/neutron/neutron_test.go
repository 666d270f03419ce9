package neutron

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/neutron/choice"
	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/cloudtest"
	"fairlead.dev/fairlead/test/drivertest"
)

// connected returns a driver that has connected to a cloud.
func connected(tb testing.TB, cfg Config, file, name string) *Driver {
	tb.Helper()
	cfg.Connect = func(ctx context.Context) (*cloud.Cloud, error) {
		return cloud.New(ctx, cloud.Config{File: file, Cloud: name, Cluster: cfg.Cluster})
	}
	d := New(cfg)
	if err := d.conn.keepTrying(tb.Context(), d.connect); err != nil {
		tb.Fatal(err)
	}
	if _, err := d.conn.get(); err != nil {
		tb.Fatal(err)
	}
	return d
}

// lan is a cloud with the network "pods" with the given subnets.
func lan(t *testing.T, prefixes ...string) (*cloudtest.Server, Config) {
	t.Helper()
	s := cloudtest.New(t)
	s.AddNetwork(t, "pods", prefixes...)
	return s, Config{Cluster: "east", Choice: choice.Config{Namespace: "fairlead-system", Default: choice.Settings{Network: "pods"}}}
}

func TestContract(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) drivertest.Backend {
		s, cfg := lan(t, "10.8.0.0/28")
		return drivertest.Backend{
			Start:      func(t *testing.T) driver.Driver { return connected(t, cfg, s.File, cloudtest.Admin) },
			Capacity:   13,
			Recover:    func() {},
			OwnBinding: true,
			Interrupt: func(after bool, do func()) {
				var done atomic.Bool
				s.Inject(func(method, path string) cloudtest.Fault {
					if method != "POST" || path != "/ports" || !done.CompareAndSwap(false, true) {
						return cloudtest.Fault{}
					}
					do()
					return cloudtest.Fault{LoseRequest: !after, LoseReply: after}
				})
			},
		}
	})
}

// onLan returns the request of the nth pod for a further interface with settings, on a
// network of the controller's namespace.
func onLan(n int, s choice.Settings) *driver.Request {
	r := drivertest.Request(n)
	r.Interface, r.Network, r.Default, r.Asks = "net1", "fairlead-system/lan", false, choice.Asks{Settings: s}
	return r
}

func attach(t *testing.T, d *Driver, r *driver.Request) driver.Ref {
	t.Helper()
	a, err := d.Ensure(t.Context(), r)
	if err != nil {
		t.Fatalf("Ensure %s: %v", r.PodName, err)
	}
	return driver.Ref{Owner: r.Owner, Interface: a.Interface}
}

// refuse checks that a request fails with the error of the contract and a text.
func refuse(t *testing.T, d *Driver, r *driver.Request, result, text string) {
	t.Helper()
	if a, err := d.Ensure(t.Context(), r); driver.Result(err) != result || !strings.Contains(err.Error(), text) {
		t.Errorf("Ensure %s: %+v, %v, want %s with %q", r.PodName, a, err, result, text)
	}
}

// An interface has the fields of its port, network and subnets. The port has those that the
// network and the pod ask for.
func TestInterfaceOfAPort(t *testing.T) {
	s, cfg := lan(t, "10.8.0.0/24", "fd08::/64")
	network := s.Objects("networks")[0]["id"].(string)
	subnet := s.Add(t, "subnets", cloudtest.AdminProject, cloudtest.Object{
		"name": "routed", "network_id": network, "cidr": "10.9.0.0/24", "ip_version": 4.0, "enable_dhcp": false, "dns_nameservers": []any{"10.9.0.53"},
		"host_routes": []any{cloudtest.Object{"destination": "10.20.0.0/16", "nexthop": "10.9.0.7"}},
	})
	group := s.Add(t, "security-groups", cloudtest.AdminProject, cloudtest.Object{"name": "web"})
	cfg.HostLabel = "example.com/host"
	d := connected(t, cfg, s.File, cloudtest.Admin)
	on := true
	r := onLan(1, choice.Settings{Network: "pods", Subnets: []string{"routed", "pods-1"}, Groups: []string{"web"}, DNSName: &on})
	r.Addresses, r.MAC = []netip.Addr{netip.MustParseAddr("10.9.0.99")}, "02:00:00:00:00:99"
	r.NodeLabels = map[string]string{"example.com/host": "chassis-7"}
	got := attach(t, d, r).Interface
	port := s.Objects("ports")[0]
	want := v1alpha1.Interface{
		Name: "net1", Network: "fairlead-system/lan", Driver: Name, Addresses: []string{"10.9.0.99/24", got.Addresses[1]}, MAC: "02:00:00:00:00:99",
		Gateways: []string{"10.9.0.1", "fd08::"}, Routes: []v1alpha1.Route{{Destination: "10.20.0.0/16", Gateway: "10.9.0.7"}},
		MTU: int32(s.Objects("networks")[0]["mtu"].(float64)), DNS: &v1alpha1.DNS{Nameservers: []string{"10.9.0.53"}}, WaitForActive: true,
		Binding: v1alpha1.Binding{OVS: &v1alpha1.OVSBinding{Bridge: "br-int", PortID: port["id"].(string)}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if err := got.Validate(); err != nil || !strings.HasPrefix(got.Addresses[1], "fd08::") || !strings.HasSuffix(got.Addresses[1], "/64") {
		t.Errorf("%v: %v", got.Addresses, err)
	}
	fields := cloudtest.Object{}
	for _, f := range []string{"name", "device_owner", "binding:host_id", "security_groups", "dns_name", "network_id", "port_security_enabled"} {
		fields[f] = port[f]
	}
	if diff := cmp.Diff(cloudtest.Object{
		"name": "default/pod-1/net1", "device_owner": DeviceOwner, "binding:host_id": "chassis-7", "security_groups": []any{group},
		"dns_name": "pod-1", "network_id": network, "port_security_enabled": true,
	}, fields); diff != "" {
		t.Errorf("port (-want +got):\n%s", diff)
	}
	if addresses := port["fixed_ips"].([]any); addresses[0].(map[string]any)["subnet_id"] != subnet {
		t.Errorf("addresses of the port: %v", addresses)
	}
	r = onLan(2, choice.Settings{Network: "pods"})
	r.NodeLabels = nil
	refuse(t, d, r, "Unavailable", "the labels of Node node-1 are not known yet")
	r.NodeLabels, r.Asks = map[string]string{}, choice.Asks{Settings: choice.Settings{Network: "pods", PortSecurity: new(bool)}}
	attach(t, d, r)
	if p := s.Objects("ports")[1]; p["binding:host_id"] != "node-1" || p["port_security_enabled"] != false {
		t.Errorf("port: %v", p)
	}
}

// A request that cannot be recorded, or that the network cannot serve, makes no port.
func TestRefusedBeforeAPort(t *testing.T) {
	s, cfg := lan(t, "10.8.0.0/24")
	s.AddNetwork(t, "other", "10.9.0.0/24")
	d := connected(t, cfg, s.File, cloudtest.Admin)
	r := drivertest.Request(1)
	r.Writable = func(i v1alpha1.Interface) error {
		if i.Binding.OVS == nil || len(i.Addresses) != 1 || i.MTU == 0 {
			t.Errorf("asked whether this is writable: %+v", i)
		}
		return errors.New("too long")
	}
	refuse(t, d, r, "Invalid", "too long")
	r = drivertest.Request(1)
	r.Addresses = []netip.Addr{netip.MustParseAddr("10.9.0.9")}
	refuse(t, d, r, "Invalid", "requested address 10.9.0.9: no subnet of the network has it: must be in [10.8.0.0/24]")
	on := true
	r = onLan(1, choice.Settings{Network: "pods", DNSName: &on})
	r.PodName = "pod.1"
	refuse(t, d, r, "Invalid", `dnsName: true: the pod's name "pod.1" is no DNS label`)
	refuse(t, d, onLan(1, choice.Settings{Network: "pods", Subnets: []string{"other-0"}}), "Invalid", `subnet "other-0" is not one of network "pods"`)
	refuse(t, d, onLan(1, choice.Settings{Network: "none"}), "NotFound", `network "none"`)
	refuse(t, d, onLan(1, choice.Settings{Network: "pods", Groups: []string{"none"}}), "NotFound", `security group "none"`)
	r = onLan(1, choice.Settings{Network: "pods"})
	r.AddressOnly = true
	refuse(t, d, r, "Invalid", "remove the binding")
	if n := s.Calls()["POST /ports"]; n != 0 {
		t.Errorf("%d ports were asked for", n)
	}
}

// An address that another pod has is a conflict. Its holder is named in its own namespace
// only.
func TestConflict(t *testing.T) {
	s, cfg := lan(t, "10.8.0.0/24")
	d := connected(t, cfg, s.File, cloudtest.Admin)
	r := drivertest.Request(1)
	r.Addresses = []netip.Addr{netip.MustParseAddr("10.8.0.9")}
	attach(t, d, r)
	next := drivertest.Request(2)
	next.Addresses = r.Addresses
	refuse(t, d, next, "Conflict", "address 10.8.0.9 is that of pod default/pod-1")
	next.Namespace = "other"
	_, err := d.Ensure(t.Context(), next)
	if driver.Result(err) != "Conflict" || strings.Contains(err.Error(), "pod-1") {
		t.Errorf("error %v", err)
	}
	next = drivertest.Request(1) // the pod asks for another address now
	next.Addresses = []netip.Addr{netip.MustParseAddr("10.8.0.10")}
	refuse(t, d, next, "Invalid", "the pod asks for address 10.8.0.10, and has a port without it")
	next.Addresses, next.MAC = nil, "02:00:00:00:00:01"
	refuse(t, d, next, "Invalid", "the pod asks for MAC 02:00:00:00:00:01, and has a port with")
}

// kuryr 1.5, BZ2002909: one subnet without addresses stopped all pods. Here the next subnet
// of the network gives them, and a network without any stops its own pods.
func TestFullSubnet(t *testing.T) {
	s, cfg := lan(t, "10.8.0.0/29", "10.8.1.0/24")
	s.AddNetwork(t, "small", "10.9.0.0/30")
	cfg.Choice.Default.Subnets = []string{"pods-0", "pods-1"}
	d := connected(t, cfg, s.File, cloudtest.Admin)
	got := map[string]int{}
	for n := range 8 {
		got[attach(t, d, drivertest.Request(n)).Interface.Addresses[0][:6]]++
	}
	if diff := cmp.Diff(map[string]int{"10.8.0": 5, "10.8.1": 3}, got); diff != "" {
		t.Errorf("addresses by subnet (-want +got):\n%s", diff)
	}
	attach(t, d, onLan(20, choice.Settings{Network: "small"}))
	refuse(t, d, onLan(21, choice.Settings{Network: "small"}), "Exhausted", "no address is left")
	attach(t, d, drivertest.Request(22))
}

// A quota stops the pods of its own project.
func TestQuotaIsolates(t *testing.T) {
	s, cfg := lan(t, "10.8.0.0/24")
	cfg.Choice.Open = []choice.Opening{{Namespaces: labels.Everything(), Names: map[string][]string{choice.KindProject: {cloudtest.MemberProject}}}}
	s.SetQuota(cloudtest.MemberProject, "port", 1)
	d := connected(t, cfg, s.File, cloudtest.Admin)
	inProject := func(n int) *driver.Request {
		r := drivertest.Request(n)
		r.NamespaceLabels, r.NamespaceAnnotations = map[string]string{}, map[string]string{pod.AnnotationProject: cloudtest.MemberProject}
		return r
	}
	ref := attach(t, d, inProject(1))
	if p := s.Objects("ports")[0]; p["project_id"] != cloudtest.MemberProject {
		t.Errorf("the port is in project %v", p["project_id"])
	}
	refuse(t, d, inProject(2), "Exhausted", "the quota of OpenStack project "+cloudtest.MemberProject+" is used up: pods with ports in other projects get theirs")
	attach(t, d, drivertest.Request(3))
	if err := d.Release(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	attach(t, d, inProject(2))
}

// kuryr 1.5: a security group that went between its choice and the create. The next try
// reads it again.
func TestGroupGoneBeforeTheCreate(t *testing.T) {
	s, cfg := lan(t, "10.8.0.0/24")
	add := func() string {
		return s.Add(t, "security-groups", cloudtest.AdminProject, cloudtest.Object{"name": "web"})
	}
	gone := add()
	cfg.Choice.Default.Groups = []string{"web"}
	d := connected(t, cfg, s.File, cloudtest.Admin)
	attach(t, d, drivertest.Request(1))
	release(t, d, drivertest.Request(1))
	c, err := d.conn.get()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Groups.DeleteGroup(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	next := add()
	refuse(t, d, drivertest.Request(2), "Unavailable", "a security group has gone since it was read")
	attach(t, d, drivertest.Request(2))
	if p := s.Objects("ports")[0]; !cmp.Equal(p["security_groups"], []any{next}) {
		t.Errorf("the port has groups %v", p["security_groups"])
	}
}

func release(t *testing.T, d *Driver, r *driver.Request) {
	t.Helper()
	if err := d.Release(t.Context(), driver.Ref{Owner: r.Owner}); err != nil {
		t.Fatal(err)
	}
}

// kuryr 1.5: a port that Neutron cannot bind is deleted and made again. If that fails too,
// the error names host and cause, and no second port is left.
func TestBindingFailed(t *testing.T) {
	s, cfg := lan(t, "10.8.0.0/24")
	var times atomic.Int32
	s.FailBinding(func(cloudtest.Object) bool { return times.Add(1) == 1 })
	d := connected(t, cfg, s.File, cloudtest.Admin)
	ref := attach(t, d, drivertest.Request(1))
	if n := len(s.Objects("ports")); n != 1 || times.Load() != 2 || ref.Interface.Binding.OVS.PortID != s.Objects("ports")[0]["id"] {
		t.Errorf("%d ports after %d binds", n, times.Load())
	}
	s.FailBinding(func(cloudtest.Object) bool { return true })
	for range 3 {
		refuse(t, d, drivertest.Request(2), "Unavailable", `on host "node-1" (vif_type binding_failed): must be the host of a running OVN controller`)
	}
	if n := len(s.Objects("ports")); n != 2 {
		t.Errorf("%d ports, want 2", n)
	}
	s.FailBinding(nil)
	attach(t, d, drivertest.Request(2))
	if n := len(s.Objects("ports")); n != 2 {
		t.Errorf("%d ports, want 2", n)
	}
}

// A port whose tag was never written is listed, adopted and released.
func TestPortWithoutItsTag(t *testing.T) {
	s, cfg := lan(t, "10.8.0.0/24")
	d := connected(t, cfg, s.File, cloudtest.Admin)
	s.Inject(func(_, path string) cloudtest.Fault {
		return cloudtest.Fault{LoseRequest: strings.Contains(path, "/tags")}
	})
	refuse(t, d, drivertest.Request(1), "Unavailable", "")
	s.Inject(nil)
	refs := listed(t, connected(t, cfg, s.File, cloudtest.Admin))
	if len(refs) != 1 || refs[0].Owner != drivertest.Request(1).Owner {
		t.Fatalf("listed: %+v", refs)
	}
	ref := attach(t, d, drivertest.Request(1))
	if n := len(s.Objects("ports")); n != 1 || len(s.Objects("ports")[0]["tags"].([]any)) == 0 {
		t.Errorf("ports: %v", s.Objects("ports"))
	}
	if err := d.Release(t.Context(), ref); err != nil || len(s.Objects("ports")) != 0 {
		t.Errorf("%v, left: %v", err, s.Objects("ports"))
	}
}

// A port whose network the credentials do not see any more keeps no other port from being
// collected. If the cloud does not answer, nothing is collected.
func TestPortWithoutItsNetwork(t *testing.T) {
	for _, tc := range []struct {
		fault cloudtest.Fault
		want  int
	}{{refusal(http.StatusNotFound, "NetworkNotFound"), 1}, {refusal(http.StatusInternalServerError, "HTTPInternalServerError"), -1}} {
		s, cfg := lan(t, "10.8.0.0/24")
		s.AddNetwork(t, "other", "10.9.0.0/24")
		d := connected(t, cfg, s.File, cloudtest.Admin)
		attach(t, d, onLan(1, choice.Settings{Network: "pods"}))
		attach(t, d, onLan(2, choice.Settings{Network: "other"}))
		next, first := connected(t, cfg, s.File, cloudtest.Admin), true
		s.Inject(func(method, path string) cloudtest.Fault {
			if method == http.MethodGet && path == "/networks/{id}" && first {
				if tc.want > 0 {
					first = false // the other network is seen
				}
				return tc.fault
			}
			return cloudtest.Fault{}
		})
		n := 0
		for ref, err := range next.List(t.Context()) {
			if n++; err != nil {
				n = -1
				t.Logf("%+v: %v", ref.Owner, err)
			}
		}
		if n != tc.want {
			t.Errorf("%d: %d ports are collected, want %d", tc.fault.Status, n, tc.want)
		}
	}
}

func listed(t *testing.T, d *Driver) (refs []driver.Ref) {
	t.Helper()
	for ref, err := range d.List(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		refs = append(refs, ref)
	}
	return refs
}

// kuryr 1.5, bug 1854928: a pod got the port of a namesake that is gone. Here the
// UID is part of the identity, and a late release of the first leaves the second alone.
func TestStaleNamesake(t *testing.T) {
	s, cfg := lan(t, "10.8.0.0/24")
	d := connected(t, cfg, s.File, cloudtest.Admin)
	old, next := drivertest.Request(1), drivertest.Request(1)
	next.PodUID = "00000000-0000-4000-8000-0000000000ff"
	first, second := attach(t, d, old), attach(t, d, next)
	if first.Interface.Addresses[0] == second.Interface.Addresses[0] {
		t.Errorf("both pods have %v", first.Interface.Addresses)
	}
	late := driver.Ref{Owner: old.Owner, Interface: second.Interface}
	for range 2 {
		if err := d.Release(t.Context(), late); err != nil {
			t.Fatal(err)
		}
	}
	if refs := listed(t, d); len(refs) != 1 || refs[0].PodUID != next.PodUID {
		t.Errorf("listed: %+v", refs)
	}
}

// Ports of others are neither listed, adopted nor released, whatever is written on them: of
// another cluster, of a machine, and of a project that no port of the cluster is in.
func TestForeignPorts(t *testing.T) {
	s, cfg := lan(t, "10.8.0.0/24")
	network := s.Objects("networks")[0]["id"]
	ours, err := holder{Owner: drivertest.Request(1).Owner, network: "default", isDefault: true}.write("east")
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := holder{Owner: drivertest.Request(1).Owner, network: "default", isDefault: true}.write("west")
	if err != nil {
		t.Fatal(err)
	}
	for project, with := range map[string]texts{cloudtest.MemberProject: ours, cloudtest.AdminProject: foreign} {
		s.Add(t, "ports", project, cloudtest.Object{
			"network_id": network, "name": with.name, "description": with.description, "device_id": with.deviceID, "device_owner": DeviceOwner,
		})
	}
	s.Add(t, "ports", cloudtest.AdminProject, cloudtest.Object{"network_id": network, "name": ours.name, "device_id": ours.deviceID, "device_owner": "compute:nova"})
	d := connected(t, cfg, s.File, cloudtest.Admin)
	if refs := listed(t, d); len(refs) != 0 {
		t.Errorf("listed: %+v", refs)
	}
	ref := driver.Ref{Owner: drivertest.Request(1).Owner}
	if _, err := d.Confirm(t.Context(), ref); driver.Result(err) != "NotFound" {
		t.Errorf("Confirm: %v", err)
	}
	release(t, d, drivertest.Request(1))
	attach(t, d, drivertest.Request(1))
	if n := len(s.Objects("ports")); n != 4 {
		t.Errorf("%d ports, want the three of others and one of the pod", n)
	}
}

// A port that was created twice, because the first create ended after the second, is
// released with the other.
func TestPortCreatedTwice(t *testing.T) {
	s, cfg := lan(t, "10.8.0.0/24")
	d := connected(t, cfg, s.File, cloudtest.Admin)
	ref := attach(t, d, drivertest.Request(1))
	p := s.Objects("ports")[0]
	twin := cloudtest.Object{}
	for _, f := range []string{"network_id", "name", "description", "device_id", "device_owner", "binding:host_id"} {
		twin[f] = p[f]
	}
	s.Add(t, "ports", cloudtest.AdminProject, twin)
	if refs := listed(t, d); len(refs) != 1 {
		t.Errorf("listed: %+v", refs)
	}
	if i, err := d.Confirm(t.Context(), ref); err != nil || i.Binding.OVS.PortID != p["id"] {
		t.Errorf("Confirm: %+v, %v", i, err)
	}
	if err := d.Release(t.Context(), ref); err != nil || len(s.Objects("ports")) != 0 {
		t.Errorf("%v, left: %v", err, s.Objects("ports"))
	}
}

// A pod that goes before its port is ACTIVE leaves nothing, also nothing that is asked about.
func TestReleaseBeforeActive(t *testing.T) {
	s, cfg := lan(t, "10.8.0.0/24")
	d := connected(t, cfg, s.File, cloudtest.Admin)
	ref := attach(t, d, drivertest.Request(1))
	if yes, _ := d.Parts().Activation.Active(ref); yes {
		t.Error("the port is ACTIVE before it is plugged")
	}
	if err := d.Release(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	n := 0
	ended, end := context.WithCancel(t.Context())
	end()
	d.ports.Activations(ended, func(driver.Owner) { n++ }) // a term asks for all that are remembered
	if n != 0 || len(s.Objects("ports")) != 0 {
		t.Errorf("%d ports are remembered, %d are left", n, len(s.Objects("ports")))
	}
}

// A port that a node plugs becomes active by one list for all, without another Ensure.
func TestActivation(t *testing.T) {
	s, cfg := lan(t, "10.8.0.0/24")
	d := connected(t, cfg, s.File, cloudtest.Admin)
	changed := make(chan driver.Owner, 16)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.Parts().Activation.Changes(ctx, func(o driver.Owner) { changed <- o })
	}()
	refs := map[string]driver.Ref{}
	for n := range 5 {
		ref := attach(t, d, drivertest.Request(n))
		refs[ref.PodName] = ref
	}
	s.ResetCalls()
	for _, ref := range refs {
		s.Plug(ref.Interface.Binding.OVS.PortID)
	}
	for range refs {
		o := <-changed
		if yes, why := d.Parts().Activation.Active(refs[o.PodName]); !yes {
			t.Errorf("pod %s is reported and not active: %s", o.PodName, why)
		}
	}
	cancel()
	<-done
	if calls := s.Calls(); calls["GET /ports"] > 3 || len(calls) != 1 {
		t.Errorf("calls: %v", calls)
	}
}

// An Ensure costs few calls: network, subnets and groups are read once for many pods.
func TestCallsOfAnEnsure(t *testing.T) {
	s, cfg := lan(t, "10.8.0.0/24")
	s.KeepTags(true)
	d := connected(t, cfg, s.File, cloudtest.Admin)
	attach(t, d, drivertest.Request(0))
	s.ResetCalls()
	for n := range 10 {
		attach(t, d, drivertest.Request(n+1))
	}
	if diff := cmp.Diff(map[string]int{"GET /ports": 10, "POST /ports": 10}, s.Calls()); diff != "" {
		t.Errorf("calls of ten pods (-want +got):\n%s", diff)
	}
}
