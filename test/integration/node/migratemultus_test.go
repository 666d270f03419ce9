package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	cnitypes "github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli"
)

// A node is switched from Multus to Fairlead as docs/operator/migrate-multus.md describes.
// Pods that Multus attached keep their interfaces, and end after the switch under both kinds
// of runtime: containerd calls the configuration of today, CRI-O that of the ADD. Pods that
// start after it have all interfaces from Fairlead. At the end nothing is left.
func TestSwitchFromMultus(t *testing.T) {
	w := newSystem(t, npwg+"\nnetworks: {open: [{namespaceSelector: {}, bridges: [br-blue], plugins: [bridge, host-local]}]}", "fairlead, fairlead-ipam")
	n := w.nodes[0]
	n.reference(t, "ipam/host-local")
	buildIn(t, "../../..", filepath.Join(n.dir, "bin", "multus"), "./test/multus")
	w.pool(t, "default", func(s *v1alpha1.IPPoolSpec) {
		s.Ranges, s.Placement = []string{"10.244.0.0/16"}, v1alpha1.PlacementPerNode
	})
	w.pool(t, "blue", func(s *v1alpha1.IPPoolSpec) {
		s.Ranges, s.NetworkNamespaceSelector = []string{"10.9.0.0/24"}, &metav1.LabelSelector{}
	})
	local := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"local","type":"bridge","bridge":"br-blue","ipam":{"type":"host-local","subnet":"10.10.0.0/24","dataDir":%q}}`,
		filepath.Join(n.dir, "host-local"))
	w.network("blue", strings.Replace(blue, `"capabilities":{"ips":true},`, "", 1))
	w.network("local", local)
	w.joinBridges(t)
	n.awaitConflist(t)
	before := n.state(t).Links
	m := &multusNode{system: w, n: n, dir: filepath.Dir(n.conflist())}
	m.install(t, w.networks["blue"], local)

	asks := onNetworks("blue,local")
	old := []*labPod{n.pod(t, "containerd", asks), n.pod(t, "crio", asks)}
	var had []map[string]v1alpha1.Interface
	for _, p := range old {
		had = append(had, w.record(t, p))
		m.call(t, p, (*libcni.CNIConfig).AddNetworkList)
		w.wantState(t, p, v1alpha1.SandboxAttached, p.containerID)
		m.running(t, p)
	}
	m.wantFiles(t, map[string]int{"host-local/local": 2, "multus": 2})

	m.switchNode(t)
	fresh := m.attachedByFairlead(t)
	// Their annotation has no effect any more.
	for _, p := range old {
		m.annotate(t, p, "blue,local,blue@more")
	}
	m.wantInside(t, fresh, "eth0", "net1", "net2")
	for i, p := range old {
		m.wantInside(t, p, "eth0", "net1", "net2")
		w.reaches(t, fresh, p, address(had[i]["net1"]))
		if diff := cmp.Diff(had[i], w.record(t, p)); diff != "" {
			t.Errorf("the record of %s (-before the switch +after):\n%s", p.name, diff)
		}
	}

	m.wantFiles(t, map[string]int{"host-local/local": 3, "multus": 2})
	m.end(t, old[0], m.ofToday)
	m.wantFiles(t, map[string]int{"host-local/local": 3, "multus": 2})
	m.cleanUp(t, old[1], fresh)
	m.wantFiles(t, map[string]int{"host-local/local": 2, "multus": 1})
	m.wantInside(t, old[1], "eth0", "net1", "net2")
	m.end(t, old[1], m.ofTheAdd)
	m.wantFiles(t, map[string]int{"host-local/local": 1, "multus": 0})
	m.cleanUp(t, fresh) // of nothing
	m.wantInside(t, fresh, "eth0", "net1", "net2")
	m.end(t, fresh, m.ofToday)
	m.wantFiles(t, map[string]int{"host-local/local": 0, "multus": 0})

	w.wantTaken(t)
	w.audit(t)
	w.wantLinks(t, n, before)
}

// multusNode is a node whose runtime calls Multus first.
type multusNode struct {
	*system
	n *labNode
	// dir has the configurations for the runtime.
	dir string
}

// install writes the configuration of Multus with the cluster's network and further ones.
func (m *multusNode) install(t *testing.T, further ...string) {
	t.Helper()
	raw, err := os.ReadFile(m.n.conflist())
	if err != nil {
		t.Fatal(err)
	}
	delegates := []json.RawMessage{raw}
	for i, text := range further {
		list, err := listOf([]byte(text), fmt.Sprint("further", i))
		if err != nil {
			t.Fatal(err)
		}
		delegates = append(delegates, list.Bytes)
	}
	config, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": "multus-cni-network", "type": "multus", "cniDir": filepath.Join(m.n.dir, "multus"), "delegates": delegates,
	})
	if err == nil {
		err = os.WriteFile(filepath.Join(m.dir, "00-multus.conf"), config, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// first returns the configuration that a runtime uses: that of the first file.
func (m *multusNode) first() (*libcni.NetworkConfigList, error) {
	files, err := libcni.ConfFiles(m.dir, []string{".conf", ".conflist", ".json"})
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, errors.New("no configuration")
	}
	first := files[0]
	for _, file := range files {
		first = min(first, file)
	}
	raw, err := os.ReadFile(first)
	if err != nil {
		return nil, err
	}
	return listOf(raw, filepath.Base(first))
}

// call calls a verb of the first configuration for a pod.
func (m *multusNode) call(t *testing.T, p *labPod, verb func(*libcni.CNIConfig, context.Context, *libcni.NetworkConfigList, *libcni.RuntimeConf) (cnitypes.Result, error)) {
	t.Helper()
	list, err := m.first()
	if err == nil {
		err = m.n.runtime(func(r *libcni.CNIConfig) error {
			_, err := verb(r, t.Context(), list, p.runtimeConf(m.cluster.Namespace, delegate{ifName: "eth0"}))
			return err
		})
	}
	if err != nil {
		t.Fatalf("%s: %v", p.name, err)
	}
}

// running plays the kubelet: a pod runs.
func (m *multusNode) running(t *testing.T, p *labPod) {
	t.Helper()
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: m.cluster.Namespace, Name: p.name}}
	patch := []byte(`{"status":{"phase":"Running","podIP":"10.244.0.5","podIPs":[{"ip":"10.244.0.5"}]}}`)
	if err := m.cluster.Client.Status().Patch(t.Context(), o, client.RawPatch(types.MergePatchType, patch)); err != nil {
		t.Fatal(err)
	}
}

func (m *multusNode) annotate(t *testing.T, p *labPod, networks string) {
	t.Helper()
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: m.cluster.Namespace, Name: p.name}}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"k8s.v1.cni.cncf.io/networks":%q}}}`, networks)
	if err := m.cluster.Client.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, patch)); err != nil {
		t.Fatal(err)
	}
}

// switchNode labels the node and takes Multus' configuration away.
func (m *multusNode) switchNode(t *testing.T) {
	t.Helper()
	o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.n.name}}
	if err := m.cluster.Client.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`))); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	code := cli.New("fairlead", &out, &out).Run(t.Context(), []string{"migrate", "multus", "node", m.n.name, "--kubeconfig", m.cluster.Kubeconfig})
	if code != 0 || !strings.Contains(out.String(), "SWITCHED") || strings.Count(out.String(), "leaves something of host-local") != 2 {
		t.Fatalf("code %d:\n%s", code, out.String())
	}
	m.script(t, "take Multus' configuration away")
	list, err := m.first()
	if err != nil || list.Name != "fairlead" {
		t.Fatalf("the runtime uses %+v, error %v", list, err)
	}
}

// attachedByFairlead attaches a pod to its networks through Fairlead alone. The controller
// may see the label after the first pods.
func (m *multusNode) attachedByFairlead(t *testing.T) *labPod {
	t.Helper()
	var p *labPod
	for i := 0; ; i++ {
		p = m.n.pod(t, fmt.Sprintf("fresh-%d", i), onNetworks("blue,local"))
		if m.record(t, p)["net1"].Binding.Bridge != nil {
			break
		}
		m.deletePod(t, p)
		m.cluster.Eventually(t, "the record of "+p.name+" to be gone", func(ctx context.Context) error {
			var pa v1alpha1.PodAttachment
			err := m.cluster.Client.Get(ctx, types.NamespacedName{Namespace: m.cluster.Namespace, Name: p.attachmentName()}, &pa)
			if err == nil {
				return errors.New("it is there")
			}
			return client.IgnoreNotFound(err)
		})
	}
	m.call(t, p, (*libcni.CNIConfig).AddNetworkList)
	m.wantState(t, p, v1alpha1.SandboxAttached, p.containerID)
	return p
}

// ofToday returns the configuration with which containerd detaches a pod.
func (m *multusNode) ofToday(*libcni.CNIConfig, *labPod) (*libcni.NetworkConfigList, error) {
	return m.first()
}

// ofTheAdd returns the configuration with which CRI-O detaches a pod of Multus.
func (m *multusNode) ofTheAdd(r *libcni.CNIConfig, p *labPod) (*libcni.NetworkConfigList, error) {
	raw, _, err := r.GetNetworkListCachedConfig(&libcni.NetworkConfigList{Name: "multus-cni-network"}, p.runtimeConf(m.cluster.Namespace, delegate{ifName: "eth0"}))
	if err != nil {
		return nil, err
	}
	return libcni.NetworkConfFromBytes(raw)
}

// end ends a pod as a runtime does: DEL, the end of the network namespace, and DEL again
// without it.
func (m *multusNode) end(t *testing.T, p *labPod, config func(*libcni.CNIConfig, *labPod) (*libcni.NetworkConfigList, error)) {
	t.Helper()
	conf := p.runtimeConf(m.cluster.Namespace, delegate{ifName: "eth0"})
	var list *libcni.NetworkConfigList
	del := func(r *libcni.CNIConfig) (err error) {
		if list == nil {
			if list, err = config(r, p); err != nil {
				return err
			}
		}
		return r.DelNetworkList(t.Context(), list, conf)
	}
	m.deletePod(t, p)
	if err := m.n.runtime(del); err != nil {
		t.Errorf("DEL of %s: %v", p.name, err)
	}
	if err := p.netns.Close(); err != nil {
		t.Fatal(err)
	}
	conf.NetNS = ""
	if err := m.n.runtime(del); err != nil {
		t.Errorf("DEL of %s without a namespace: %v", p.name, err)
	}
	m.cluster.Eventually(t, "the addresses of "+p.name+" to be free", func(ctx context.Context) error {
		taken, err := m.taken(ctx)
		for a, name := range taken {
			if name == p.name {
				return fmt.Errorf("it has %s", a)
			}
		}
		return err
	})
}

// script executes a script of the operator's page on the node.
func (m *multusNode) script(t *testing.T, title string) {
	t.Helper()
	m.n.script(t, "migrate-multus.md", title,
		"/etc/cni/net.d", m.dir, "/opt/cni/bin", filepath.Join(m.n.dir, "bin"), "/var/lib/cni/multus", filepath.Join(m.n.dir, "multus"))
}

// cleanUp detaches the pods of Multus that have ended. crictl lists these pods.
func (m *multusNode) cleanUp(t *testing.T, running ...*labPod) {
	t.Helper()
	var ids []string
	for _, p := range running {
		ids = append(ids, p.containerID)
	}
	m.n.standIn(t, "crictl", "[ \"$*\" = 'pods --quiet' ] && printf '%s\\n' "+strings.Join(ids, " "))
	m.script(t, "detach the pods of Multus that have ended")
}

// wantFiles compares the numbers of files about pods below directories of the node.
func (m *multusNode) wantFiles(t *testing.T, want map[string]int) {
	t.Helper()
	got := map[string]int{}
	for dir := range want {
		entries, err := os.ReadDir(filepath.Join(m.n.dir, dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if !e.IsDir() && e.Name() != "lock" && !strings.HasPrefix(e.Name(), "last_reserved_ip") {
				got[dir]++
			}
		}
		got[dir] += 0
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// wantInside compares the links in a pod, but for its loopback.
func (m *multusNode) wantInside(t *testing.T, p *labPod, want ...string) {
	t.Helper()
	h, err := p.netns.Netlink()
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	links, err := h.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range links {
		if l.Attrs().Name != "lo" {
			got = append(got, l.Attrs().Name)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("interfaces in %s (-want +got):\n%s", p.name, diff)
	}
}
