package node

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/cniproto/server"
	"fairlead.dev/fairlead/test/integration/sources"
	"fairlead.dev/fairlead/test/nettest"
	"fairlead.dev/fairlead/test/nodetest"
)

// install builds a program into the directory of the plugins.
func (n *node2) install(t *testing.T, name, module, pkg string) {
	t.Helper()
	look := func() error { return sources.Module(module) }
	if module == "." { // a program of this module
		look = func() error { return sources.Look(pkg) }
	}
	if err := look(); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", filepath.Join(n.Dir, name), pkg)
	build.Dir, build.Env = module, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// withReference runs a test with reference plugins.
func withReference(t *testing.T, plugins []string, names []string, interfaces func(dir string, i []v1alpha1.Interface), test func(*testing.T, *node2)) {
	t.Helper()
	data := t.TempDir()
	executingNode(t, names, func(i []v1alpha1.Interface) { interfaces(data, i) }, func(t *testing.T, n *node2) {
		for _, p := range plugins {
			n.install(t, filepath.Base(p), "../../test/bench/reference", "github.com/containernetworking/plugins/plugins/"+p)
		}
		test(t, n)
		left, err := filepath.Glob(filepath.Join(data, "blue", "10.*"))
		if err != nil || len(left) > 0 {
			t.Errorf("addresses are left: %v, %v", left, err)
		}
	})
}

// The reference plugins bridge and host-local make an interface, and CHECK, restart and
// DEL work as with Fairlead's own.
func TestReferencePluginsAreDelegated(t *testing.T) {
	withReference(t, []string{"main/bridge", "ipam/host-local"}, []string{"eth0", "net1"}, func(data string, i []v1alpha1.Interface) {
		delegates(&i[1])
		i[1].Binding.Delegate.CNIVersion = "1.0.0"
		i[1].Binding.Delegate.Plugins = []string{`{"type":"bridge","bridge":"br-blue","ipam":{"type":"host-local","subnet":"10.9.0.0/24","dataDir":"` + data + `"}}`}
	}, func(t *testing.T, n *node2) {
		raw := n.plugged()
		if i := n.network.ledger.Get("c1").Attached().Interfaces[1]; !slices.Equal(i.Addresses, []string{"10.9.0.2/24"}) || i.MAC == "" {
			t.Errorf("recorded MAC %q, addresses %q", i.MAC, i.Addresses)
		}
		ips, err := nettest.PodIPs(n.pod, "net1")
		if err != nil || len(ips) != 1 || ips[0].String() != "10.9.0.2" {
			t.Errorf("the pod has %v, %v", ips, err)
		}
		if got := n.links(n.key); len(got) != 2 || !slices.Equal(got[1].Addresses, []string{"10.9.0.2/24"}) {
			t.Errorf("links in the status: %+v", got)
		}
		nodetest.WantCode(t, n.check(raw), 0)
		n.restart()
		nodetest.WantCode(t, n.check(raw), 0)
		if out, err := exec.Command("nsenter", "--net="+n.pod.Path(), "ip", "addr", "del", "10.9.0.2/24", "dev", "net1").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		err = n.check(raw)
		if e := cniproto.AsError(err); err == nil || !strings.Contains(e.Details, "CHECK of plugin bridge") {
			t.Errorf("CHECK without the address: %v", err)
		}
		nodetest.WantCode(t, n.del("c1"), 0)
		settle()
		n.hostLinks = append(n.hostLinks, "br-blue") // the plugin leaves it
		slices.Sort(n.hostLinks)
		n.wantNothing("DEL")
	})
}

// The reference plugins tuning and sbr follow an interface on Fairlead's bridge.
func TestReferencePluginsAreChained(t *testing.T) {
	withReference(t, []string{"meta/tuning", "meta/sbr"}, []string{"eth0", "net1"}, func(_ string, i []v1alpha1.Interface) {
		i[1].Addresses, i[1].Gateways = []string{"10.9.0.7/24"}, nil
		i[1].Chain = &v1alpha1.PluginList{Name: "blue", CNIVersion: "1.0.0", Plugins: []string{
			`{"type":"tuning","sysctl":{"net.ipv4.conf.net1.arp_filter":"1"},"mtu":1400,"dataDir":"` + t.TempDir() + `"}`, `{"type":"sbr"}`,
		}}
	}, func(t *testing.T, n *node2) {
		raw := n.plugged()
		out, err := exec.Command("nsenter", "--net="+n.pod.Path(), "ip", "rule").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "from 10.9.0.7 lookup") {
			t.Errorf("rules of the pod: %v: %s", err, out)
		}
		if mtu := nettest.LinkNamed(t, n.pod, "net1").Attrs().MTU; mtu != 1400 {
			t.Errorf("MTU %d", mtu)
		}
		nodetest.WantCode(t, n.check(raw), 0)
		n.restart()
		nodetest.WantCode(t, n.check(raw), 0)
		nodetest.WantCode(t, n.del("c1"), 0)
		settle()
		n.wantNothing("DEL")
	})
}

// The reference plugin bridge asks the daemon that executes it for addresses, by
// fairlead-ipam and the daemon's socket.
func TestReferencePluginWithOurAddresses(t *testing.T) {
	withReference(t, []string{"main/bridge"}, []string{"eth0", "net1"}, func(_ string, i []v1alpha1.Interface) {
		delegates(&i[1])
		i[1].Addresses = []string{blueAddress}
		i[1].Binding.Delegate.CNIVersion = "1.1.0"
		i[1].Binding.Delegate.Plugins = []string{`{"type":"bridge","bridge":"br-blue","ipam":{"type":"fairlead-ipam"}}`}
	}, func(t *testing.T, n *node2) {
		n.install(t, "fairlead-ipam", ".", "fairlead.dev/fairlead/cmd/fairlead-cni")
		var raw []byte
		n.serving(func() (err error) {
			raw, err = n.handle(n.request(cniproto.VerbAdd))
			return err
		})
		ips, err := nettest.PodIPs(n.pod, "net1")
		if err != nil || len(ips) != 1 || ips[0].String() != "10.9.0.7" {
			t.Errorf("the pod has %v, %v", ips, err)
		}
		n.serving(func() error { return n.check(raw) })
		n.serving(func() error {
			_, err := n.handle(gcRequest(`,"cni.dev/valid-attachments":[]`))
			return err
		})
		n.serving(func() error { return n.del("c1") })
		settle()
		n.hostLinks = append(n.hostLinks, "br-blue")
		slices.Sort(n.hostLinks)
		n.wantNothing("DEL")
	})
}

// serving runs an operation that must succeed, with the daemon's socket open.
func (n *node2) serving(do func() error) {
	n.t.Helper()
	l, err := server.Listen(n.socket)
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(ctx, l, n.daemon.handler(), server.Config{}); err != nil {
			n.t.Error(err)
		}
	})
	err = do()
	cancel()
	serving.Wait()
	if err != nil {
		n.t.Fatal(err)
	}
}
