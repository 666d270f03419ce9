package cli

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam/audit"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/clitest"
	"fairlead.dev/fairlead/test/cluster"
)

// slotOf returns the record of an address that a pod has just taken.
func slotOf(ordinal int, p *corev1.Pod) string {
	return fmt.Sprintf("%d A 1 %d %s %s/%s/eth0 %s", ordinal, time.Now().Add(-time.Second).UnixMilli(), p.UID, p.Namespace, p.Name, p.Spec.NodeName)
}

// attach creates the record of a pod with one address of domain default.
func attach(t *testing.T, c *cluster.Cluster, p *corev1.Pod, address string) {
	t.Helper()
	create(t, c, pod.Record(pod.IdentityOf(p), []v1alpha1.Interface{{
		Name: "eth0", Network: v1alpha1.DefaultNetwork, Driver: "native", Default: true,
		Addresses: []string{address}, Domain: "default", Pool: "lan",
		Binding: v1alpha1.Binding{Routed: &v1alpha1.RoutedBinding{}},
	}}))
}

// change updates an object of the cluster.
func change[T client.Object](t *testing.T, c *cluster.Cluster, o T, how func(T)) {
	t.Helper()
	how(o)
	if err := c.Client.Update(t.Context(), o); err != nil {
		t.Fatalf("changing %T %s: %v", o, o.GetName(), err)
	}
}

// holding has the fields of `who -o json` that tests read.
type holding struct {
	Domains []struct {
		State   string
		Holder  struct{ Pod string }
		Records []string
		Until   *time.Time
	}
}

// auditing has the fields of `ipam audit -o json`.
type auditing struct {
	OK bool
	audit.Report
}

// TestAddressesOfACluster acts as the controller on a real API server, inspects its
// addresses through the program, and then damages them by hand. It needs the whole
// cluster, because an audit covers it all.
func TestAddressesOfACluster(t *testing.T) {
	c := cluster.Exclusive(t)
	node := c.Node("served")
	network := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
	create(t, c, network)
	setStatus(t, c, network, func(n *v1alpha1.NodeNetwork) {
		n.Status.Conditions = []metav1.Condition{clitest.Condition(v1alpha1.ConditionRouted, metav1.ConditionTrue, "Routed")}
	})
	pool := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "lan"}, Spec: v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.0/25"}}}
	create(t, c, pool)
	setStatus(t, c, pool, func(p *v1alpha1.IPPool) {
		p.Status = v1alpha1.IPPoolStatus{
			Usable: 126, Free: 122, Allocated: 2, Held: 1, Reserved: 1,
			Conditions: []metav1.Condition{clitest.Condition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonValid)},
		}
	})
	create(t, c, &v1alpha1.IPReservation{ObjectMeta: metav1.ObjectMeta{Name: "printer"}, Spec: v1alpha1.IPReservationSpec{Ranges: []string{"10.0.0.9"}}})
	claim := &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "kept"}}
	create(t, c, claim)
	web, api := c.Pod("web", node.Name), c.Pod("api", node.Name)
	block := clitest.BlockOf("10.0.0.0/26", "", slotOf(1, web), slotOf(2, api), fmt.Sprintf("3 H 2 %d %s/kept", time.Now().Add(-time.Hour).UnixMilli(), c.Namespace))
	slots := block.Spec.Slots
	create(t, c, &block)
	attach(t, c, web, "10.0.0.1/25")
	attach(t, c, api, "10.0.0.2/25")

	drawn := askJSON[mapView](t, c, exitOK, "pools", "lan", "--map")
	if diff := cmp.Diff([]mapBlock{{CIDR: "10.0.0.0/26", Slots: "-##H.....x" + strings.Repeat(".", 54)}}, drawn.Blocks); diff != "" {
		t.Error(diff)
	}
	if s := pool.Status; drawn.Usable != s.Usable || drawn.Free != s.Free || drawn.Allocated != s.Allocated || drawn.Held != s.Held || drawn.Reserved != s.Reserved {
		t.Errorf("the map's counts %+v differ from the status %+v", drawn, s)
	}
	who := askJSON[holding](t, c, exitOK, "who", "10.0.0.1").Domains[0]
	if who.State != "Allocated" || who.Holder.Pod != "web" || !slices.Equal(who.Records, []string{c.Namespace + "/" + pod.AttachmentName("web", web.UID)}) {
		t.Errorf("who has 10.0.0.1: %+v", who)
	}
	if kept := askJSON[holding](t, c, exitOK, "who", "10.0.0.3", "--domain", "default").Domains[0]; kept.State != "Held" || kept.Until == nil {
		t.Errorf("who has 10.0.0.3: %+v", kept)
	}
	addSteps := askJSON[explainView](t, c, exitOK, "explain", "pod", "web", "-n", c.Namespace)
	var steps []string
	for _, s := range addSteps.Steps {
		steps = append(steps, s.Step+" "+string(s.Mark))
	}
	want := []string{"scheduled Done", "node Done", "record Done", "addresses Done", "active NotNeeded", "plugged Waiting"}
	if diff := cmp.Diff(want, steps); diff != "" {
		t.Error(diff)
	}
	if got := call(t, "explain", "pod", c.Namespace+"/nobody", "--kubeconfig", c.Kubeconfig); got.Code != exitError || !strings.Contains(got.Stderr, "there is no pod "+c.Namespace+"/nobody") {
		t.Errorf("explain a pod that is not there: %+v", got)
	}
	if report := askJSON[auditing](t, c, exitOK, "ipam", "audit"); !report.OK || report.Slots != 3 || report.Attachments != 2 {
		t.Errorf("audit of a sound cluster: %+v", report)
	}

	for _, tt := range []struct {
		name   string
		damage func()
		repair func()
		want   []string
	}{
		{
			"a slot is given to another",
			func() {
				change(t, c, &block, func(b *v1alpha1.IPBlock) { b.Spec.Slots = []string{slotOf(1, api), slots[1], slots[2]} })
			},
			func() { change(t, c, &block, func(b *v1alpha1.IPBlock) { b.Spec.Slots = slots }) },
			[]string{"I1 10.0.0.1", "I2 10.0.0.1"},
		},
		{
			"a slot is garbled",
			func() {
				change(t, c, &block, func(b *v1alpha1.IPBlock) { b.Spec.Slots = append(slices.Clone(slots), "60 A me") })
			},
			func() { change(t, c, &block, func(b *v1alpha1.IPBlock) { b.Spec.Slots = slots }) },
			[]string{"I2 10.0.0.60", "I7 pool lan"},
		},
		{
			"the status is off by one",
			func() { setStatus(t, c, pool, func(p *v1alpha1.IPPool) { p.Status.Free++ }) },
			func() { setStatus(t, c, pool, func(p *v1alpha1.IPPool) { p.Status.Free-- }) },
			[]string{"I7 pool lan"},
		},
		{
			"the claim and the block go",
			func() {
				for _, o := range []client.Object{claim, &block} {
					if err := c.Client.Delete(t.Context(), o); err != nil {
						t.Fatal(err)
					}
				}
			},
			func() {},
			[]string{"I1 10.0.0.1", "I1 10.0.0.2", "I7 pool lan", "I7 pool lan"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.damage()
			defer tt.repair()
			var got []string
			for _, f := range askJSON[auditing](t, c, exitAttention, "ipam", "audit").Findings {
				got = append(got, f.Invariant+" "+f.Address)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
