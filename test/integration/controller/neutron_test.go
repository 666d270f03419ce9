package controller

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver/neutron"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/cloudtest"
	"fairlead.dev/fairlead/test/cluster"
)

// neutronTest has controllers with ports of a cloud in memory.
type neutronTest struct {
	*claimTest
	cloud *cloudtest.Server
	// unplugged keeps the node from plugging ports.
	unplugged atomic.Bool
}

// startNeutron runs two controllers; one leads. A node plugs every port and detaches every
// pod that goes.
func startNeutron(t *testing.T, c *cluster.Cluster, more ...string) *neutronTest {
	t.Helper()
	return startNeutronWith(t, c, "ports: {network: lan}, open: [{namespaceSelector: {}, networks: [lan]}]", more...)
}

// startNeutronWith is startNeutron with other ports and openings of openstack in the
// configuration.
func startNeutronWith(t *testing.T, c *cluster.Cluster, part string, more ...string) *neutronTest {
	t.Helper()
	freeLease(t, c)
	t.Cleanup(func() { freeLease(t, c) })
	w := &neutronTest{claimTest: &claimTest{&observer{c: c, domain: "two"}}, cloud: cloudtest.New(t)}
	w.cloud.AddNetwork(t, "lan", "10.8.0.0/24", "fd08::/64")
	w.cloud.AddNetwork(t, "secret", "10.9.0.0/24")
	binary, err := buildController()
	if err != nil {
		t.Fatal(err)
	}
	c.Node("node-x")
	create(t, c, &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: v1alpha1.IPPoolSpec{Domain: "two", Ranges: []string{"10.1.0.0/24"}}})
	w.repeat(t, 10*time.Millisecond, func(ctx context.Context) {
		if records, err := w.records(ctx); err == nil {
			w.detach(ctx, records)
			for _, r := range records {
				if !w.unplugged.Load() {
					w.plug(r)
				}
			}
		}
	})
	for range 2 {
		superviseBinary(t, binary, c.Account(cluster.ControllerAccount, ""), append(more, "gcInterval: 10s", briefLease, "multiVIFSources: [npwg]", "networks: {attachedBy: Fairlead}",
			fmt.Sprintf("openstack: {cluster: east, cloudsFile: %q, cloud: admin, %s}", w.cloud.File, part))...)
	}
	return w
}

// plug does what Neutron does when the node plugs the ports of a record.
func (w *neutronTest) plug(r v1alpha1.PodAttachment) {
	for _, i := range r.Spec.Interfaces {
		if i.Binding.OVS != nil {
			w.cloud.Plug(i.Binding.OVS.PortID)
		}
	}
}

// pods creates pods, each with an interface on a network of the pods' namespace.
func (w *neutronTest) pods(name, network string, n int) []*corev1.Pod {
	pods := make([]*corev1.Pod, n)
	for i := range pods {
		pods[i] = w.annotated(fmt.Sprintf("%s-%d", name, i), "node-x", pod.AnnotationNetworks, network)
	}
	return pods
}

// waits waits until a pod has its record, with a second interface whose port is not active.
func (w *neutronTest) waits(t *testing.T, p *corev1.Pod) {
	t.Helper()
	w.c.Eventually(t, "the record of pod "+p.Name+" to wait", func(ctx context.Context) error {
		record := &v1alpha1.PodAttachment{}
		if err := w.c.Client.Get(ctx, client.ObjectKey{Namespace: p.Namespace, Name: pod.AttachmentName(p.Name, p.UID)}, record); err != nil {
			return err
		}
		has, s := record.Spec.Interfaces, record.Status.Interfaces
		if len(has) != 2 || has[0].Driver != "native" || has[1].Driver != neutron.Name || len(s) != 1 || s[0].Name != "net1" || s[0].Active || !strings.Contains(s[0].Message, "is not ACTIVE yet") {
			return fmt.Errorf("it has %+v and %+v", has, s)
		}
		return nil
	})
}

// active waits until a pod has its record, with a port that is active. It returns the record.
func (w *neutronTest) active(t *testing.T, p *corev1.Pod, iface string) *v1alpha1.PodAttachment {
	t.Helper()
	record := &v1alpha1.PodAttachment{}
	w.c.Eventually(t, "the port of pod "+p.Name+" to be active", func(ctx context.Context) error {
		if err := w.c.Client.Get(ctx, client.ObjectKey{Namespace: p.Namespace, Name: pod.AttachmentName(p.Name, p.UID)}, record); err != nil {
			return err
		}
		for _, s := range record.Status.Interfaces {
			if s.Name == iface && s.Active {
				return nil
			}
		}
		return fmt.Errorf("it has %+v and %+v", record.Spec.Interfaces, record.Status.Interfaces)
	})
	return record
}

// gone deletes pods and waits until there is no record, no taken address and no port.
func (w *neutronTest) gone(t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	for _, p := range pods {
		w.delete(t, p)
	}
	w.c.Eventually(t, "nothing to be left", func(ctx context.Context) error {
		if left := w.cloud.Objects("ports"); len(left) > 0 {
			return fmt.Errorf("%d ports are left, as %v", len(left), left[0])
		}
		return w.empty(ctx)
	})
}

// Pods have ports of Neutron beside addresses of a pool, through the failures that
// kuryr-kubernetes met (research 1.5, 7.3).
func TestNeutron(t *testing.T) {
	t.Parallel()
	c := cluster.Exclusive(t)
	w := startNeutron(t, c)
	c.Network("lan", `{"cniVersion":"1.0.0","type":"fairlead-neutron","network":"lan"}`)
	c.Network("secret", `{"cniVersion":"1.0.0","type":"fairlead-neutron","network":"secret"}`)
	port := c.Network("port", fmt.Sprintf(`{"cniVersion":"0.4.0","type":"openstack-port-cni","network_id":%q,"subnet_id":%q,"delegate_plugin":"ovs","bridge":"br-int"}`, "lan", "lan-0"))

	t.Run("a port beside a pool's address", func(t *testing.T) {
		pods := append(w.pods("web", "lan", 6), w.pods("port", port.GetName(), 2)...)
		for i, p := range pods {
			record := w.active(t, p, "net1")
			has := record.Spec.Interfaces
			if len(has) != 2 || has[0].Driver != "native" || has[1].Driver != neutron.Name || has[1].Binding.OVS == nil || len(has[1].Gateways) > 0 {
				t.Errorf("pod %s has %+v", p.Name, has)
			}
			if families := len(has[1].Addresses); i < 6 && families != 2 || i >= 6 && families != 1 {
				t.Errorf("pod %s has %v", p.Name, has[1].Addresses)
			}
		}
		if n := w.cloud.Calls()["POST /ports"]; n != len(pods) {
			t.Errorf("%d creates for %d pods", n, len(pods))
		}
		w.gone(t, pods...)
	})
	t.Run("a network that is not open", func(t *testing.T) {
		p := w.pods("thief", "secret", 1)[0]
		w.refused(t, p, "NetworkInvalid", `network "secret"`, "openstack.open")
		w.gone(t, p)
	})
	t.Run("a quota releases what the pod has, when it goes", func(t *testing.T) {
		w.cloud.SetQuota(cloudtest.AdminProject, "port", 1)
		both := w.annotated("both", "node-x", pod.AnnotationNetworks, "lan,lan")
		w.refused(t, both, "NetworkExhausted", "the quota of OpenStack project "+cloudtest.AdminProject+" is used up")
		plain := c.Pod("plain", "node-x")
		addressOf(t, c, plain)
		w.gone(t, both, plain)
		w.cloud.SetQuota(cloudtest.AdminProject, "port", -1)
	})
	t.Run("killed between create and record", func(t *testing.T) { w.killed(t) })
	t.Run("Neutron is away under churn", func(t *testing.T) { w.away(t) })
	t.Run("ports that are plugged late", func(t *testing.T) { w.late(t) })
	t.Run("a port without a pod", func(t *testing.T) {
		p := w.pods("ghost", "lan", 1)[0]
		record := w.active(t, p, "net1")
		ghost := w.cloud.Object("ports", record.Spec.Interfaces[1].Binding.OVS.PortID)
		w.gone(t, p)
		again := cloudtest.Object{}
		for _, f := range []string{"network_id", "name", "description", "device_id", "device_owner", "binding:host_id"} {
			again[f] = ghost[f]
		}
		w.cloud.Add(t, "ports", cloudtest.AdminProject, again)
		w.gone(t)
	})
}

// killed ends the leader while it creates a port: the reply is lost, and the next leader
// adopts the port.
func (w *neutronTest) killed(t *testing.T) {
	leader := processOf(t, leaderOf(t, w.c))
	var once atomic.Bool
	w.cloud.ResetCalls()
	w.cloud.Inject(func(method, path string) cloudtest.Fault {
		if method != "POST" || path != "/ports" || !once.CompareAndSwap(false, true) {
			return cloudtest.Fault{}
		}
		if err := syscall.Kill(leader, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		return cloudtest.Fault{LoseReply: true}
	})
	defer w.cloud.Inject(nil)
	p := w.pods("adopted", "lan", 1)[0]
	record := w.active(t, p, "net1")
	if now := w.cloud.Objects("ports"); len(now) != 1 || now[0]["id"] != record.Spec.Interfaces[1].Binding.OVS.PortID {
		t.Errorf("ports: %v", now)
	}
	if n := w.cloud.Calls()["POST /ports"]; n != 1 || processOf(t, leaderOf(t, w.c)) == leader {
		t.Errorf("%d creates; process %d was killed", n, leader)
	}
	w.gone(t, p)
}

// away takes Neutron away while pods come and go. Other pods get their addresses, the
// controllers go on, and afterwards every pod gets its port and nothing is left.
func (w *neutronTest) away(t *testing.T) {
	leaving, staying := w.pods("leaving", "lan", 3), w.pods("staying", "lan", 3)
	for _, p := range append(leaving, staying...) {
		w.active(t, p, "net1")
	}
	leader := leaderOf(t, w.c)
	w.cloud.Inject(func(string, string) cloudtest.Fault { return cloudtest.Fault{LoseRequest: true} })
	coming := w.pods("coming", "lan", 3)
	for _, p := range leaving {
		w.delete(t, p)
	}
	short := w.pods("short", "lan", 2)
	w.refused(t, short[0], "NetworkUnavailable", "interface net1")
	for _, p := range short { // their default interfaces are released, though there is no record yet
		w.delete(t, p)
	}
	plain := w.c.Pod("unaffected", "node-x")
	addressOf(t, w.c, plain)
	w.refused(t, coming[0], "NetworkUnavailable", "interface net1")
	w.refused(t, leaving[0], "IPAddressGarbageCollectionFailed", "unavailable")
	w.c.Eventually(t, "the release of the addresses of pods without a record", func(ctx context.Context) error {
		slots, err := w.slots(ctx)
		if most := len(leaving) + len(staying) + len(coming) + 1; len(slots) > most {
			err = fmt.Errorf("taken are %v", slots)
		}
		return err
	})
	w.cloud.Inject(nil)
	for _, p := range append(coming, staying...) {
		w.active(t, p, "net1")
	}
	if now := leaderOf(t, w.c); now != leader {
		t.Errorf("the leader is %s, and was %s: Neutron that is away restarts nothing", now, leader)
	}
	w.gone(t, append(append(coming, staying...), plain)...)
}

// late plugs ports long after their records. They become active without another create; the
// second time the leader has ended meanwhile.
func (w *neutronTest) late(t *testing.T) {
	for _, killed := range []bool{false, true} {
		w.unplugged.Store(true)
		w.cloud.ResetCalls()
		pods := w.pods("late", "lan", 4)
		for _, p := range pods {
			w.waits(t, p)
		}
		if leader := leaderOf(t, w.c); killed {
			if err := syscall.Kill(processOf(t, leader), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		} else {
			<-time.After(1500 * time.Millisecond)
		}
		w.unplugged.Store(false) // maybe before the next leader looks
		for _, p := range pods {
			w.active(t, p, "net1")
		}
		if n := w.cloud.Calls()["POST /ports"]; n != len(pods) {
			t.Errorf("%d creates for %d pods; the leader was killed: %t", n, len(pods), killed)
		}
		w.gone(t, pods...)
	}
}

// The default interfaces are ports. A tenant's namespace cannot choose a project that is not
// open to it.
func TestNeutronDefaultNetwork(t *testing.T) {
	t.Parallel()
	c := cluster.Exclusive(t)
	w := startNeutron(t, c, "defaultNetwork: {driver: neutron}")
	pods := make([]*corev1.Pod, 4)
	for i := range pods {
		pods[i] = c.Pod(fmt.Sprintf("web-%d", i), "node-x")
	}
	for _, p := range pods {
		i := w.active(t, p, "eth0").Spec.Interfaces[0]
		if !i.Default || i.Driver != neutron.Name || len(i.Addresses) != 2 || len(i.Gateways) != 2 || !strings.HasPrefix(i.Addresses[0], "10.8.0.") {
			t.Errorf("pod %s has %+v", p.Name, i)
		}
	}
	asks := w.annotated("asks", "node-x", v1alpha1.AnnotationAddresses, "10.8.0.200")
	if got := addressOf(t, c, asks); !strings.HasPrefix(got, "10.8.0.200,") {
		t.Errorf("the pod has %s", got)
	}
	next := w.annotated("next", "node-x", v1alpha1.AnnotationAddresses, "10.8.0.200")
	w.refused(t, next, "NetworkConflict", "address 10.8.0.200 is that of pod "+c.Namespace+"/asks")
	w.delete(t, asks)
	if got := addressOf(t, c, next); !strings.HasPrefix(got, "10.8.0.200,") {
		t.Errorf("the next pod has %s", got)
	}
	w.refused(t, w.annotated("pools", "node-x", v1alpha1.AnnotationPools, "default"), "NetworkInvalid", "annotation fairlead.dev/pools")
	w.refused(t, w.annotated("groups", "node-x", v1alpha1.AnnotationSecurityGroups, "admin"), "NetworkInvalid", `security group "admin"`)

	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.Namespace}}
	annotate := func(value string) {
		t.Helper()
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, pod.AnnotationProject, value)
		if err := c.Client.Patch(t.Context(), namespace, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
			t.Fatal(err)
		}
	}
	annotate(`"` + cloudtest.MemberProject + `"`)
	thief := c.Pod("thief", "node-x")
	for n := 0; w.served(t, thief); n++ { // the annotation may not be in the cache yet
		thief = c.Pod(fmt.Sprintf("thief-%d", n), "node-x")
	}
	w.refused(t, thief, "NetworkInvalid", "annotation openstack.org/kuryr-project", cloudtest.MemberProject)
	for _, p := range w.cloud.Objects("ports") {
		if p["project_id"] != cloudtest.AdminProject {
			t.Errorf("a port is in project %v", p["project_id"])
		}
	}
	annotate("null")
	if err := c.Client.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(c.Namespace), client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	w.gone(t)
}

// served reports whether a pod has a record within half a second.
func (w *neutronTest) served(t *testing.T, p *corev1.Pod) bool {
	t.Helper()
	for range 50 {
		key := client.ObjectKey{Namespace: p.Namespace, Name: pod.AttachmentName(p.Name, p.UID)}
		if w.c.Client.Get(t.Context(), key, &v1alpha1.PodAttachment{}) == nil {
			return true
		}
		<-time.After(10 * time.Millisecond)
	}
	return false
}

// A cloud that cannot be reached, or has no file of credentials yet, keeps the controller
// from nothing else. Its pods are served when it is there, without a restart.
func TestNeutronComesLater(t *testing.T) {
	t.Parallel()
	c := cluster.Exclusive(t)
	w := startNeutron(t, c)
	c.Network("lan", `{"cniVersion":"1.0.0","type":"fairlead-neutron","network":"lan"}`)
	held := w.pods("held", "lan", 1)[0]
	w.active(t, held, "net1")
	text, err := os.ReadFile(w.cloud.File)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(w.cloud.File); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := syscall.Kill(processOf(t, leaderOf(t, c)), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-time.After(3 * time.Second) // the other leads, and the first begins anew
	}
	leader := leaderOf(t, c)
	p, plain := w.pods("late", "lan", 1)[0], c.Pod("plain", "node-x")
	addressOf(t, c, plain)
	w.refused(t, p, "NetworkUnavailable", "no connection to OpenStack")
	w.delete(t, held)
	c.Eventually(t, "the record of a pod with a port to be leaving", func(ctx context.Context) error {
		record := &v1alpha1.PodAttachment{}
		err := c.Client.Get(ctx, client.ObjectKey{Namespace: held.Namespace, Name: pod.AttachmentName(held.Name, held.UID)}, record)
		if err == nil && record.DeletionTimestamp == nil {
			err = fmt.Errorf("it has %+v", record.Status)
		}
		return err
	})
	if err := os.WriteFile(w.cloud.File, text, 0o600); err != nil {
		t.Fatal(err)
	}
	w.active(t, p, "net1")
	if now := leaderOf(t, c); now != leader {
		t.Errorf("%s leads, and %s did", now, leader)
	}
	w.gone(t, p, plain)
}
