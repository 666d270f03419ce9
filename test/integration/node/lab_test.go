package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/netlab"
)

// lab has two nodes on a link and a control plane.
type lab struct {
	cluster  *cluster.Cluster
	net      *netlab.Lab
	binaries string
	netns    string // where namespaces are pinned
	// of reports whether blocks, gateways and pods have an address's family; nil for both
	// families.
	of func(netip.Addr) bool
}

func newLab(t *testing.T) *lab {
	t.Helper()
	return newLabIn(t, cluster.New(t))
}

// newLabIn is newLab with an existing control plane.
func newLabIn(t *testing.T, c *cluster.Cluster) *lab {
	t.Helper()
	return newLabOn(t, c, netlab.Config{Nodes: 2})
}

// newLabOn is newLabIn with another network.
func newLabOn(t *testing.T, c *cluster.Cluster, network netlab.Config) *lab {
	t.Helper()
	if !network.IPv4Only && !netlab.HasIPv6() {
		t.Skip("needs a kernel with IPv6: the lab's network has it")
	}
	if err := lookAtSources(); err != nil {
		t.Fatal(err)
	}
	l := &lab{cluster: c, binaries: t.TempDir(), netns: sharedDirectory(t)}
	// The plugin accepts spools below the directory of temporary files in place of /run, since
	// the spools of the nodes are there.
	run := "-X fairlead.dev/fairlead/internal/cniproto.RunDir=" + filepath.Clean(os.TempDir())
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags", run, "-o", l.binaries, "../../../cmd/fairlead-node", "../../../cmd/fairlead-cni")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var err error
	if l.net, err = netlab.New(t.Context(), network); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.net.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// only returns the addresses and prefixes of the lab's families.
func (l *lab) only(of ...string) []string {
	return slices.DeleteFunc(of, func(s string) bool {
		address, _, _ := strings.Cut(s, "/")
		return l.of != nil && !l.of(netip.MustParseAddr(address))
	})
}

// sharedDirectory creates a directory with shared mounts: a daemon sees mounts that are made
// after its start, as in /run/netns in its container.
func sharedDirectory(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount(dir, dir, "", syscall.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := syscall.Mount("", dir, "", syscall.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
	return dir
}

// asContainer runs a program with a read-only /proc/sys, as in a container that is not
// privileged, and with the capabilities that deploy/node.yaml adds.
const asContainer = `mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys &&
	exec setpriv --bounding-set=-all,+net_admin,+net_raw,+sys_admin -- "$0" "$@"`

// labNode is a node with its daemon.
type labNode struct {
	*netlab.Machine
	name, dir, config string
	lab               *lab
	daemon            *exec.Cmd
	log               *os.File
}

// node creates a node with a connection to the API server. It creates the NodeNetwork, as the
// controller does.
func (l *lab) node(t *testing.T, number int) *labNode {
	t.Helper()
	n := &labNode{
		Machine: l.net.Nodes[number], name: fmt.Sprintf("%s-%d", l.cluster.Namespace, number+1), dir: t.TempDir(), lab: l,
	}
	l.cluster.Node(n.name, func(o *corev1.Node) {
		for _, a := range n.Addresses() {
			o.Status.Addresses = append(o.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.Addr().String()})
		}
	})
	nn := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: n.name}}
	nn.Spec.Blocks = l.only(fmt.Sprintf("10.244.%d.0/26", number+1), fmt.Sprintf("fd00:10:244:%d::/122", number+1))
	if err := l.cluster.Client.Create(t.Context(), nn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.cluster.Client.Delete(context.WithoutCancel(t.Context()), nn); err != nil {
			t.Error(err)
		}
	})
	api, err := url.Parse(l.cluster.REST.Host)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := n.Listen(t.Context(), api.Host)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- netlab.Forward(ctx, listener, func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", api.Host)
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	n.config = filepath.Join(n.dir, "node.yaml")
	text := fmt.Sprintf(`nodeName: %s
kubeconfig: %s
stateDir: %s/state
cni: {binDir: %s/bin, confDir: %s/conf, pluginSource: %s/fairlead-cni}
addTimeout: 10s
metricsAddress: "unix:%s/metrics.sock"
`, n.name, l.cluster.Account(cluster.NodeAccount, n.name), n.dir, n.dir, n.dir, l.binaries, n.dir)
	if err := os.WriteFile(n.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if n.log, err = os.Create(filepath.Join(n.dir, "log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		raw, _ := os.ReadFile(n.log.Name())
		if bytes.Contains(raw, []byte("forbidden")) {
			t.Errorf("the daemon of %s tried what deploy/rights does not allow; see its log", n.name)
		}
		if t.Failed() {
			t.Logf("log of %s:\n%s", n.name, raw)
		}
		_ = n.log.Close()
	})
	return n
}

func (n *labNode) conflist() string { return filepath.Join(n.dir, "conf", "10-fairlead.conflist") }

// start starts the daemon and waits until it is ready.
func (n *labNode) start(t *testing.T) {
	t.Helper()
	n.launch(t)
	n.awaitReady(t)
}

// launch starts the daemon as the DaemonSet does, with the view and the capabilities of its
// container.
func (n *labNode) launch(t *testing.T) {
	t.Helper()
	n.daemon = n.container("run", "--config", n.config, "-v", "1")
	n.daemon.Stderr = n.log
	if err := n.Start(n.daemon); err != nil {
		t.Fatal(err)
	}
	daemon := n.daemon
	t.Cleanup(func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
	})
}

// container returns a command of the daemon's program with the view and the capabilities of
// the DaemonSet's container.
func (n *labNode) container(args ...string) *exec.Cmd {
	unshare := []string{"--mount", "--propagation", "slave", "sh", "-c", asContainer, filepath.Join(n.lab.binaries, "fairlead-node")}
	return exec.Command("unshare", append(unshare, args...)...)
}

// awaitReady waits until the daemon is ready.
func (n *labNode) awaitReady(t *testing.T) {
	t.Helper()
	web := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(n.dir, "metrics.sock"))
	}}}
	defer web.CloseIdleConnections()
	n.lab.cluster.Eventually(t, n.name+" to be ready", func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://node/readyz", nil)
		if err != nil {
			return err
		}
		resp, err := web.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	})
}

// awaitConflist waits until the daemon has written the network configuration for the runtime.
// The daemon is ready a moment earlier.
func (n *labNode) awaitConflist(t *testing.T) {
	t.Helper()
	n.lab.cluster.Eventually(t, "the network configuration of "+n.name, func(context.Context) error {
		_, err := os.Stat(n.conflist())
		return err
	})
}

func (n *labNode) kill(t *testing.T) {
	t.Helper()
	if err := n.daemon.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = n.daemon.Wait()
}

func (n *labNode) stop(t *testing.T) {
	t.Helper()
	if err := n.daemon.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := n.daemon.Wait(); err != nil {
		t.Errorf("the daemon ended with %v", err)
	}
}

// run runs another command of the daemon's program on the node.
func (n *labNode) run(t *testing.T, args ...string) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.CommandContext(t.Context(), filepath.Join(n.lab.binaries, "fairlead-node"), args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := n.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %v: %s", args, err, out.String())
	}
}

func (n *labNode) state(t *testing.T) netlab.State {
	t.Helper()
	s, err := n.State()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// removeBlock deletes the IPv4 route to the block of the node, and returns it.
func (n *labNode) removeBlock(t *testing.T) string {
	t.Helper()
	handle, err := n.Netlink()
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Close()
	routes, err := handle.RouteListFiltered(unix.AF_INET, &netlink.Route{Type: unix.RTN_UNREACHABLE}, netlink.RT_FILTER_TYPE)
	if err != nil || len(routes) != 1 {
		t.Fatalf("routes to blocks: %v, %v", routes, err)
	}
	if err := handle.RouteDel(&routes[0]); err != nil {
		t.Fatal(err)
	}
	return routes[0].Dst.String()
}

func (n *labNode) removeLink(t *testing.T, name string) {
	t.Helper()
	handle, err := n.Netlink()
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Close()
	link, err := handle.LinkByName(name)
	if err == nil {
		err = handle.LinkDel(link)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// labPod is a pod with its sandbox.
type labPod struct {
	name, containerID string
	uid               types.UID
	addresses         []string
	netns             *netlab.Namespace
}

func (n *labNode) pod(t *testing.T, name string, with ...func(*corev1.Pod)) *labPod {
	t.Helper()
	ns, err := netlab.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	if err := ns.Pin(filepath.Join(n.lab.netns, name)); err != nil {
		t.Fatal(err)
	}
	pod := n.lab.cluster.Pod(name, n.name, with...)
	return &labPod{name: name, uid: pod.UID, netns: ns, containerID: name + "-" + strings.ReplaceAll(string(pod.UID), "-", "")}
}

func (p *labPod) attachmentName() string { return p.name + "-" + string(p.uid)[:8] }

// attachment creates a pod's PodAttachment, as the controller does.
func (l *lab) attachment(t *testing.T, n *labNode, p *labPod, addresses ...string) {
	t.Helper()
	l.attach(t, n, p, addresses)
}

// attach is attachment with further interfaces.
func (l *lab) attach(t *testing.T, n *labNode, p *labPod, addresses []string, further ...v1alpha1.Interface) {
	t.Helper()
	p.addresses = l.only(addresses...)
	pa := &v1alpha1.PodAttachment{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: l.cluster.Namespace, Name: p.attachmentName(), Finalizers: []string{v1alpha1.ReleaseFinalizer},
		},
		Spec: v1alpha1.PodAttachmentSpec{
			PodName: p.name, PodUID: p.uid, NodeName: n.name,
			Interfaces: []v1alpha1.Interface{{
				Name: "eth0", Network: v1alpha1.DefaultNetwork, Driver: "native", Default: true,
				Addresses: p.addresses, Gateways: l.only("169.254.1.1", "fe80::1"),
				Binding: v1alpha1.Binding{Routed: &v1alpha1.RoutedBinding{}},
			}},
			Summary: v1alpha1.AttachmentSummary{Interfaces: "eth0", Addresses: strings.Join(p.addresses, ",")},
		},
	}
	pa.Spec.Interfaces = append(pa.Spec.Interfaces, further...)
	if err := l.cluster.Client.Create(t.Context(), pa); err != nil {
		t.Fatal(err)
	}
}

// release deletes a pod's PodAttachment, as the controller does. The finalizer is removed at
// the end of the test.
func (l *lab) release(t *testing.T, p *labPod) {
	t.Helper()
	pa := &v1alpha1.PodAttachment{ObjectMeta: metav1.ObjectMeta{Namespace: l.cluster.Namespace, Name: p.attachmentName()}}
	if err := l.cluster.Client.Delete(t.Context(), pa); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		drop := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
		if err := l.cluster.Client.Patch(context.WithoutCancel(t.Context()), pa, drop); err != nil {
			t.Error(err)
		}
	})
}

// wantState waits until the status of a pod's PodAttachment has this state and container ID.
func (l *lab) wantState(t *testing.T, p *labPod, state v1alpha1.SandboxState, containerID string) {
	t.Helper()
	key := types.NamespacedName{Namespace: l.cluster.Namespace, Name: p.attachmentName()}
	l.cluster.Eventually(t, fmt.Sprintf("%s to be %s", key, state), func(ctx context.Context) error {
		var pa v1alpha1.PodAttachment
		if err := l.cluster.Client.Get(ctx, key, &pa); err != nil {
			return err
		}
		s := pa.Status.Sandbox
		ready := meta.IsStatusConditionTrue(pa.Status.Conditions, v1alpha1.ConditionReady)
		if s == nil || s.State != state || s.ID != containerID || s.BootID == "" || ready != (state == v1alpha1.SandboxAttached) {
			return fmt.Errorf("sandbox %+v, conditions %+v", s, pa.Status.Conditions)
		}
		return nil
	})
}

// wantTalk checks that one pod reaches another at an address.
func (l *lab) wantTalk(t *testing.T, from, to *labPod, address string) {
	t.Helper()
	if err := talk(t.Context(), from, to, address); err != nil {
		t.Errorf("%s does not reach %s at %s: %v", from.name, to.name, address, err)
	}
}

// talk connects one pod to another at an address. It returns an error if it cannot connect.
func talk(ctx context.Context, from, to *labPod, address string) error {
	listener, err := to.netns.Listen(ctx, net.JoinHostPort(address, "0"))
	if err != nil {
		return err
	}
	defer listener.Close()
	return from.netns.Do(func() error {
		conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", listener.Addr().String())
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// wantResult checks the answer to ADD against the pod.
func (l *lab) wantResult(t *testing.T, a pluginAnswer, p *labPod) {
	t.Helper()
	var got struct {
		CNIVersion string
		Interfaces []struct {
			Name, Mac, Sandbox string
			Mtu                int
		}
		IPs []struct {
			Address   netip.Prefix
			Gateway   netip.Addr
			Interface int
		}
	}
	if err := json.Unmarshal(a.stdout, &got); err != nil {
		t.Fatalf("%v: %s", err, a.stdout)
	}
	var addresses []string
	for _, ip := range got.IPs {
		addresses = append(addresses, ip.Address.String())
		if ip.Interface != 1 {
			t.Errorf("address %s is on interface %d", ip.Address, ip.Interface)
		}
	}
	if diff := cmp.Diff(p.addresses, addresses); diff != "" {
		t.Error(diff)
	}
	if got.CNIVersion != "1.1.0" || len(got.Interfaces) != 2 {
		t.Fatalf("result %s", a.stdout)
	}
	inside := got.Interfaces[1]
	var have struct {
		mac string
		mtu int
	}
	err := p.netns.Do(func() error {
		ifc, err := net.InterfaceByName("eth0")
		if err == nil {
			have.mac, have.mtu = ifc.HardwareAddr.String(), ifc.MTU
		}
		return err
	})
	if err != nil || inside.Name != "eth0" || inside.Mac != have.mac || inside.Mtu != have.mtu || inside.Sandbox != p.netns.Path() {
		t.Errorf("the result has %+v, the pod has %+v, %v", inside, have, err)
	}
}
