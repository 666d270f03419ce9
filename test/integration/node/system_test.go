package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/cluster"
)

// system is a lab with the real programs: the controller, a daemon on each of two nodes, the
// plugin under its three names, the reference plugins bridge and macvlan, and libcni as the
// runtime and Multus use it.
type system struct {
	*lab
	t     *testing.T // the system ends with this test
	nodes []*labNode
	// networks holds the configurations of the NADs by name.
	networks map[string]string
	config   string // file of the controller's configuration
	running  *exec.Cmd
}

// newSystem starts all programs. controller holds further lines of the controller's
// configuration; names holds the names of the plugin.
func newSystem(t *testing.T, controller, names string) *system {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
	c := cluster.Exclusive(t)
	c.Networks()
	w := &system{lab: newLabIn(t, c), t: t, networks: map[string]string{}}
	for _, program := range []string{"fairlead-controller", "fairlead-cni"} { // the plugin sees a /run of its node
		buildIn(t, "../../..", filepath.Join(w.binaries, program), "./cmd/"+program)
	}
	for i := range 2 {
		n := w.node(t, i)
		w.nodes = append(w.nodes, n)
		text, err := os.ReadFile(n.config)
		if err == nil {
			err = os.WriteFile(n.config, bytes.Replace(text, []byte("cni: {"), []byte("cni: {names: ["+names+"], "), 1), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range w.nodes {
		n.reference(t, "main/bridge", "main/macvlan")
	}
	w.config = filepath.Join(t.TempDir(), "controller.yaml")
	text := fmt.Sprintf("kubeconfig: %q\nmetricsAddress: \"0\"\nleaderElection: {leaseDuration: 2s, renewDeadline: 1500ms, retryPeriod: 100ms}\n%s\n",
		c.Account(cluster.ControllerAccount, ""), controller)
	if err := os.WriteFile(w.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	w.startController()
	for _, n := range w.nodes {
		n.start(t)
		n.runDirectory(t)
	}
	return w
}

// reference builds reference plugins into the directory of Fairlead's plugins.
func (n *labNode) reference(t *testing.T, plugins ...string) {
	t.Helper()
	bin := filepath.Join(n.dir, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, plugin := range plugins {
		built := filepath.Join(n.lab.binaries, filepath.Base(plugin))
		if _, err := os.Stat(built); err != nil {
			buildIn(t, "../../bench/reference", built, "github.com/containernetworking/plugins/plugins/"+plugin)
		}
		if err := os.Symlink(built, filepath.Join(bin, filepath.Base(plugin))); err != nil {
			t.Fatal(err)
		}
	}
}

// startController starts the controller, which ends with the system's test, not with a
// subtest.
func (w *system) startController() {
	t := w.t
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(w.binaries, "fairlead-controller"), "--config", w.config, "-v", "1")
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.running = cmd
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		raw, _ := os.ReadFile(log.Name())
		if bytes.Contains(raw, []byte("forbidden")) {
			t.Error("the controller tried what deploy/rights does not allow; see its log")
		}
		if t.Failed() {
			t.Logf("the controller's log:\n%s", raw)
		}
		_ = log.Close()
	})
}

// killController kills the controller, as a power failure would.
func (w *system) killController(t *testing.T) {
	t.Helper()
	if err := w.running.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = w.running.Wait()
}

// pool creates an IPPool with its own domain.
func (w *system) pool(t *testing.T, name string, change func(*v1alpha1.IPPoolSpec)) {
	t.Helper()
	p := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}}
	change(&p.Spec)
	if err := w.cluster.Client.Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
}

// network creates a NetworkAttachmentDefinition.
func (w *system) network(name, config string) {
	w.networks[name] = config
	w.cluster.Network(name, config)
}

// onNetworks sets the annotation of Multus on a pod.
func onNetworks(text string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{pod.AnnotationNetworks: text} }
}

// record waits for the PodAttachment of a pod, and returns its interfaces by name.
func (w *system) record(t *testing.T, p *labPod) map[string]v1alpha1.Interface {
	t.Helper()
	var pa v1alpha1.PodAttachment
	w.cluster.Eventually(t, "the record of "+p.name, func(ctx context.Context) error {
		return w.cluster.Client.Get(ctx, types.NamespacedName{Namespace: w.cluster.Namespace, Name: p.attachmentName()}, &pa)
	})
	out := map[string]v1alpha1.Interface{}
	for _, i := range pa.Spec.Interfaces {
		out[i.Name] = i
	}
	return out
}

// taken returns the taken addresses of all domains, each with the name of its pod.
func (w *system) taken(ctx context.Context) (map[string]string, error) {
	var list v1alpha1.IPBlockList
	if err := w.cluster.Client.List(ctx, &list); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, b := range list.Items {
		for slot := range ipam.DecodeBlock(netip.MustParsePrefix(b.Spec.CIDR), b.Spec.Node, b.Spec.Slots).Slots() {
			if slot.State == ipam.Taken {
				out[slot.Addr.String()] = slot.Holder.Pod
			}
		}
	}
	return out, nil
}

// wantTaken waits until these pods have addresses and no others.
func (w *system) wantTaken(t *testing.T, pods ...string) {
	t.Helper()
	slices.Sort(pods)
	w.cluster.Eventually(t, fmt.Sprintf("only pods %q to have addresses", pods), func(ctx context.Context) error {
		taken, err := w.taken(ctx)
		if err != nil {
			return err
		}
		have := slices.Compact(slices.Sorted(maps.Values(taken)))
		if !slices.Equal(pods, have) {
			return fmt.Errorf("taken are %v", taken)
		}
		return nil
	})
}

// audit waits until `fairlead ipam audit` finds nothing.
func (w *system) audit(t *testing.T) {
	t.Helper()
	found := "nothing"
	w.cluster.Eventually(t, "a clean audit", func(ctx context.Context) error {
		var out bytes.Buffer
		program := cli.New("fairlead", &out, &out) //nolint:contextcheck // its commands get the context from Run
		code := program.Run(ctx, []string{"ipam", "audit", "--kubeconfig", w.cluster.Kubeconfig})
		if code == 0 {
			return nil
		}
		if ctx.Err() == nil {
			found = out.String()
		}
		return fmt.Errorf("it ends with code %d; before the time was over it found:\n%s", code, found)
	})
}

// wantPodEvent waits for an event on a pod with this reason and all texts in its note.
func (w *system) wantPodEvent(t *testing.T, p *labPod, reason string, texts ...string) {
	t.Helper()
	w.cluster.Eventually(t, fmt.Sprintf("the event %s on pod %s with the texts %q", reason, p.name, texts), func(ctx context.Context) error {
		var list eventsv1.EventList
		if err := w.cluster.Client.List(ctx, &list, client.InNamespace(w.cluster.Namespace)); err != nil {
			return err
		}
		var seen []string
		for _, e := range list.Items {
			lacks := func(text string) bool { return !strings.Contains(e.Note, text) }
			if e.Regarding.UID != p.uid {
				continue
			}
			if e.Reason == reason && !slices.ContainsFunc(texts, lacks) {
				return nil
			}
			seen = append(seen, e.Reason+": "+e.Note)
		}
		return fmt.Errorf("seen %q", seen)
	})
}

// delegate is one network of a pod, as Multus attaches it.
type delegate struct {
	// network is the name of a NetworkAttachmentDefinition; empty for the
	// cluster's own configuration.
	network, ifName string
	// ips are the addresses that the pod requests.
	ips []string
}

// list returns the network configuration of a delegate, with the name that Multus gives it.
func (w *system) list(t *testing.T, n *labNode, d delegate) (*libcni.NetworkConfigList, error) {
	t.Helper()
	raw := []byte(w.networks[d.network])
	if d.network == "" && len(raw) == 0 {
		n.awaitConflist(t)
		var err error
		if raw, err = os.ReadFile(n.conflist()); err != nil {
			return nil, err
		}
	}
	return listOf(raw, d.network)
}

// listOf parses the configuration of a plugin or of a list. name is used if the configuration
// has no name.
func listOf(raw []byte, name string) (*libcni.NetworkConfigList, error) {
	var config map[string]any
	if err := json.Unmarshal(raw, &config); err != nil {
		return nil, err
	}
	if config["name"] == nil {
		config["name"] = name
	}
	if config["plugins"] == nil {
		config = map[string]any{"cniVersion": config["cniVersion"], "name": config["name"], "plugins": []any{config}}
	}
	raw, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	return libcni.NetworkConfFromBytes(raw)
}

// runtimeConf returns the runtime configuration that Multus gives a delegate, with the
// requested addresses in both forms.
func (p *labPod) runtimeConf(namespace string, d delegate) *libcni.RuntimeConf {
	conf := &libcni.RuntimeConf{
		ContainerID: p.containerID, NetNS: p.netns.Path(), IfName: d.ifName,
		Args: [][2]string{
			{"IgnoreUnknown", "true"},
			{"K8S_POD_NAMESPACE", namespace},
			{"K8S_POD_NAME", p.name},
			{"K8S_POD_INFRA_CONTAINER_ID", p.containerID},
			{"K8S_POD_UID", string(p.uid)},
		},
	}
	if len(d.ips) > 0 {
		conf.Args = append(conf.Args, [2]string{"IP", strings.Join(d.ips, ",")})
		conf.CapabilityArgs = map[string]any{"ips": d.ips}
	}
	return conf
}

// runDirectory creates the directory that plugins see as /run.
func (n *labNode) runDirectory(t *testing.T) {
	t.Helper()
	run := filepath.Join(n.dir, "run")
	if err := os.Mkdir(run, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(n.dir, "state"), filepath.Join(run, "fairlead")); err != nil {
		t.Fatal(err)
	}
}

// runtime calls do with a libcni whose plugins see the node's network and the node's /run. The
// daemon's socket has its usual path there.
func (n *labNode) runtime(do func(*libcni.CNIConfig) error) error {
	return n.Do(func() error {
		if err := syscall.Unshare(syscall.CLONE_FS | syscall.CLONE_NEWNS); err != nil {
			return fmt.Errorf("make a mount namespace: %w", err)
		}
		if err := syscall.Mount("", "/", "", syscall.MS_SLAVE|syscall.MS_REC, ""); err != nil {
			return fmt.Errorf("keep mounts to the node: %w", err)
		}
		if err := syscall.Mount(filepath.Join(n.dir, "run"), "/run", "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount /run: %w", err)
		}
		return do(libcni.NewCNIConfigWithCacheDir([]string{filepath.Join(n.dir, "bin")}, filepath.Join(n.dir, "cache"), nil))
	})
}

// add attaches a pod to all of its networks in this order, and waits until it is
// ready.
func (w *system) add(t *testing.T, n *labNode, p *labPod, all ...delegate) {
	t.Helper()
	w.addSome(t, n, p, all...)
	w.wantState(t, p, v1alpha1.SandboxAttached, p.containerID)
}

// addSome attaches a pod to networks in this order. It checks that each answer has the
// addresses in the record, and that CHECK succeeds.
func (w *system) addSome(t *testing.T, n *labNode, p *labPod, all ...delegate) {
	t.Helper()
	record := w.record(t, p)
	for _, d := range all {
		list, err := w.list(t, n, d)
		if err != nil {
			t.Fatal(err)
		}
		conf := p.runtimeConf(w.cluster.Namespace, d)
		var got *types100.Result
		err = n.runtime(func(r *libcni.CNIConfig) error {
			res, err := r.AddNetworkList(t.Context(), list, conf)
			if err != nil {
				return err
			}
			if got, err = types100.NewResultFromResult(res); err != nil {
				return err
			}
			return r.CheckNetworkList(t.Context(), list, conf)
		})
		if err != nil {
			t.Fatalf("%s of %s on network %q: %v", d.ifName, p.name, d.network, err)
		}
		var addresses []string
		for _, ip := range got.IPs {
			addresses = append(addresses, ip.Address.String())
		}
		if diff := cmp.Diff(record[d.ifName].Addresses, addresses); diff != "" {
			t.Errorf("%s of %s: the record's addresses, and those of the answer:\n%s", d.ifName, p.name, diff)
		}
	}
}

// del detaches a pod, the last network first.
func (w *system) del(t *testing.T, n *labNode, p *labPod, all ...delegate) {
	t.Helper()
	for _, d := range slices.Backward(all) {
		list, err := w.list(t, n, d)
		if err != nil {
			t.Fatal(err)
		}
		err = n.runtime(func(r *libcni.CNIConfig) error {
			return r.DelNetworkList(t.Context(), list, p.runtimeConf(w.cluster.Namespace, d))
		})
		if err != nil {
			t.Errorf("DEL of %s of %s: %v", d.ifName, p.name, err)
		}
	}
}

// deletePod deletes a pod in the API server at once.
func (w *system) deletePod(t *testing.T, p *labPod) {
	t.Helper()
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.cluster.Namespace, Name: p.name}}
	if err := w.cluster.Client.Delete(t.Context(), o, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
}

// wantLinks waits until a node has the same links as before.
func (l *lab) wantLinks(t *testing.T, n *labNode, before []string) {
	t.Helper()
	l.cluster.Eventually(t, "nothing to be left on "+n.name, func(context.Context) error {
		if diff := cmp.Diff(before, n.state(t).Links); diff != "" {
			return fmt.Errorf("links (-want +got):\n%s", diff)
		}
		for _, dir := range []string{"addresses", "attachments"} {
			left, err := os.ReadDir(filepath.Join(n.dir, "state", dir))
			if err != nil && !os.IsNotExist(err) {
				return err
			}
			if len(left) > 0 {
				return fmt.Errorf("%s: %v", dir, left)
			}
		}
		return nil
	})
}

// address returns the first address of an interface, without the prefix length.
func address(i v1alpha1.Interface) string {
	text, _, _ := strings.Cut(i.Addresses[0], "/")
	return text
}
