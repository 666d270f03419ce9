package cli

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/migration"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/test/cluster"
)

// everything returns the version of each object that a migration may change.
func (r *realWhereabouts) everything() map[string]string {
	r.t.Helper()
	out := map[string]string{}
	note := func(kind string, o metav1.Object) { out[kind+" "+o.GetName()] = o.GetResourceVersion() }
	for _, kind := range []string{"IPPool", "OverlappingRangeIPReservation"} {
		items, err := r.list(r.t.Context(), whereaboutsKind(kind))
		if err != nil {
			r.t.Fatal(err)
		}
		for i := range items {
			note(kind, &items[i])
		}
	}
	var (
		pools    v1alpha1.IPPoolList
		blocks   v1alpha1.IPBlockList
		records  v1alpha1.PodAttachmentList
		withheld v1alpha1.IPReservationList
		leases   coordinationv1.LeaseList
	)
	for _, list := range []client.ObjectList{&pools, &blocks, &records, &withheld} {
		if err := r.Client.List(r.t.Context(), list); err != nil {
			r.t.Fatal(err)
		}
	}
	if err := r.Client.List(r.t.Context(), &leases, client.InNamespace(r.Namespace)); err != nil {
		r.t.Fatal(err)
	}
	for i := range pools.Items {
		note("our IPPool", &pools.Items[i])
	}
	for i := range blocks.Items {
		note("IPBlock", &blocks.Items[i])
	}
	for i := range records.Items {
		note("PodAttachment", &records.Items[i])
	}
	for i := range withheld.Items {
		note("IPReservation", &withheld.Items[i])
	}
	for i := range leases.Items {
		note("Lease", &leases.Items[i])
	}
	return out
}

// runStore runs a store with the blocks of the cluster, until the returned function is
// called.
func runStore(t *testing.T, c *cluster.Cluster) (*block.Store, func()) {
	t.Helper()
	var blocks v1alpha1.IPBlockList
	if err := c.Client.List(t.Context(), &blocks); err != nil {
		t.Fatal(err)
	}
	s := block.New(block.Kube{Writer: c.Client, Live: c.Client}, block.Config{})
	for i := range blocks.Items {
		s.Observe(&blocks.Items[i])
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return s, func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// drain takes every free address of a pool, as the controller would.
func drain(t *testing.T, c *cluster.Cluster, name string) []netip.Addr {
	t.Helper()
	var (
		o        v1alpha1.IPPool
		withheld v1alpha1.IPReservationList
	)
	err := errors.Join(c.Client.Get(t.Context(), client.ObjectKey{Name: name}, &o), c.Client.List(t.Context(), &withheld))
	if err != nil {
		t.Fatal(err)
	}
	pool, err := block.PoolOf(&o)
	if err != nil {
		t.Fatal(err)
	}
	pool = pool.Without(block.Reservations(withheld.Items))
	s, stop := runStore(t, c)
	defer stop()
	var out []netip.Addr
	for i := range 300 {
		h := ipam.Holder{PodUID: fmt.Sprintf("new-%d", i), Interface: "net1"}
		leases, err := s.Take(t.Context(), pool, block.Request{Holder: h})
		if errors.Is(err, fault.ErrExhausted) {
			for j := range i {
				if err := s.Free(t.Context(), ipam.Holder{PodUID: fmt.Sprintf("new-%d", j), Interface: "net1"}, pool.Domain(), nil); err != nil {
					t.Fatal(err)
				}
			}
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, leases[0].Addr)
	}
	t.Fatalf("pool %s does not end", name)
	return nil
}

func (r *realWhereabouts) delete(o client.Object) {
	r.t.Helper()
	if err := r.Client.Delete(r.t.Context(), o, client.GracePeriodSeconds(0)); err != nil {
		r.t.Fatal(err)
	}
	r.Eventually(r.t, "the end of "+o.GetName(), func(ctx context.Context) error {
		if err := r.Client.Get(ctx, client.ObjectKeyFromObject(o), o); client.IgnoreNotFound(err) != nil || err == nil {
			return fmt.Errorf("it is there: %w", err)
		}
		return nil
	})
}

// findingsOf returns the kinds and addresses of a migration's findings.
func findingsOf(v migration.View) []string {
	var out []string
	for _, f := range v.Findings {
		out = append(out, fmt.Sprintf("%s %s %s %s", f.Domain, f.Address, f.Kind, f.Outcome))
	}
	return out
}

// TestMigrateWhereabouts lets the real whereabouts allocate addresses, damages its
// records as it does itself, and migrates: there, back, and there again.
func TestMigrateWhereabouts(t *testing.T) {
	g := readGuide(t, "operator/migrate-whereabouts.md", "fairlead migrate whereabouts")
	program := buildWhereabouts(t)
	c := cluster.Exclusive(t)
	r := newRealWhereabouts(t, c, program)
	node := c.Node("node-x", func(n *corev1.Node) { n.Status.NodeInfo.BootID = "boot-1" })
	lan := r.network("lan", map[string]any{"range": "10.9.0.0/28", "gateway": "10.9.0.14"})
	dual := r.network("dual", map[string]any{"range": "10.8.0.0/24", "ipRanges": []map[string]any{{"range": "fd00:8::/64"}}})
	blue := r.network("blue", map[string]any{"range": "10.9.0.0/28", "network_name": "blue"})

	_, one := r.run("one", node.Name, "lan", lan)
	two, twos := r.run("two", node.Name, "lan", lan)
	gone, goners := r.run("gone", node.Name, "lan", lan)
	_, both := r.run("both", node.Name, "dual", dual)
	_, blues := r.run("blue-one", node.Name, "blue", blue)
	// A pod ended without a DEL, and whereabouts' own reconciler deleted the reservation
	// of a running pod on a named network.
	r.delete(gone)
	lost := &unstructured.Unstructured{}
	lost.SetGroupVersionKind(whereaboutsKind("OverlappingRangeIPReservation"))
	lost.SetNamespace(r.Namespace)
	lost.SetName("blue-" + blues[0].String())
	r.delete(lost)
	wantFindings := []string{
		"blue " + blues[0].String() + " NoReservation reported",
		"default " + goners[0].String() + " PodGone withheld",
	}

	// A dry run changes nothing.
	before := r.everything()
	view := askJSON[migration.View](t, c, exitAttention, g.args("fairlead migrate whereabouts --dry-run")...)
	if diff := cmp.Diff(before, r.everything()); diff != "" {
		t.Errorf("a dry run changed something: %s", diff)
	}
	if diff := cmp.Diff(wantFindings, findingsOf(view)); diff != "" || view.New != 5 || view.NewRecords != 4 {
		t.Errorf("dry run: %+v\n%s", view, diff)
	}

	view = askJSON[migration.View](t, c, exitAttention, g.args("fairlead migrate whereabouts")...)
	if diff := cmp.Diff(wantFindings, findingsOf(view)); diff != "" || view.New != 5 || view.Withheld != 1 {
		t.Errorf("migration: %+v\n%s", view, diff)
	}
	who := askJSON[holding](t, c, exitOK, "who", one[0].String(), "--domain", "default").Domains[0]
	if who.State != "Allocated" || who.Holder.Pod != "one" || len(who.Records) != 1 {
		t.Errorf("who has %s: %+v", one[0], who)
	}
	// Every address is explained. The controller, which writes the counts, does not run.
	found := call(t, "ipam", "audit", "--kubeconfig", c.Kubeconfig)
	if strings.Contains(found.Stdout, "I1 ") || strings.Contains(found.Stdout, "I2 ") || found.Stderr != "" {
		t.Errorf("audit after the migration: %+v", found)
	}
	var records v1alpha1.PodAttachmentList
	if err := c.Client.List(t.Context(), &records, client.InNamespace(c.Namespace)); err != nil {
		t.Fatal(err)
	}
	for _, a := range records.Items {
		s := a.Status.Sandbox
		if s == nil || s.ID != a.Spec.PodName+"-sandbox" || s.State != v1alpha1.SandboxAttached || s.BootID != "boot-1" {
			t.Errorf("PodAttachment %s has sandbox %+v", a.Name, s)
		}
	}
	// Only free addresses are allocated: none that is in use, withheld or the gateway's.
	used := []netip.Addr{one[0], twos[0], goners[0], netip.MustParseAddr("10.9.0.14")}
	i := slices.IndexFunc(view.Pools, func(name string) bool { return strings.HasPrefix(name, "wb-10.9.0.0-28") })
	if i < 0 {
		t.Fatalf("pools %q", view.Pools)
	}
	pool := view.Pools[i]
	given := drain(t, c, pool)
	if len(given) != 10 {
		t.Errorf("pool %s gave %v, want the 10 that are free", pool, given)
	}
	for _, a := range given {
		if slices.Contains(used, a) {
			t.Errorf("pool %s gave %s, which is in use", pool, a)
		}
	}

	// A repetition changes nothing.
	settled := r.everything()
	if again := askJSON[migration.View](t, c, exitAttention, "migrate", "whereabouts"); again.New != 0 || again.NewRecords != 0 {
		t.Errorf("migrated again: %+v", again)
	}
	after := r.everything()
	delete(settled, "Lease whereabouts")
	delete(after, "Lease whereabouts") // its renewal changes it
	if diff := cmp.Diff(settled, after); diff != "" {
		t.Errorf("migrating again changed something: %s", diff)
	}

	// Meanwhile whereabouts waits.
	late := r.Pod("late", node.Name)
	type answer struct {
		addrs []netip.Addr
		err   error
	}
	waiting := make(chan answer, 1)
	go func() {
		addrs, err := r.cni(t.Context(), "ADD", late.Name, lan)
		waiting <- answer{addrs, err}
	}()
	// A pod ends, and its address is released, as after the switch of a node.
	r.delete(two)
	for i := range records.Items {
		if a := &records.Items[i]; a.Spec.PodName == "two" {
			release(t, c, a)
		}
	}
	select {
	case a := <-waiting:
		if a.err == nil {
			t.Fatalf("whereabouts gave %v during the migration", a.addrs)
		}
		waiting <- a
	default:
	}

	settled = r.everything()
	if code := call(t, append(g.args("fairlead migrate whereabouts --rollback --dry-run"), "--kubeconfig", c.Kubeconfig)...); code.Code != exitOK {
		t.Errorf("dry run of the rollback: %+v", code)
	}
	if diff := cmp.Diff(settled, r.everything()); diff != "" {
		t.Errorf("a dry run of the rollback changed something: %s", diff)
	}
	if code := call(t, append(g.args("fairlead migrate whereabouts --rollback"), "--kubeconfig", c.Kubeconfig)...); code.Code != exitOK {
		t.Fatalf("rollback: %+v", code)
	}
	a := <-waiting
	if a.err != nil { // whereabouts has given up, and the runtime retries
		a.addrs = r.add(late.Name, lan)
	}
	if slices.Contains([]netip.Addr{one[0], goners[0]}, a.addrs[0]) {
		t.Fatalf("ADD after the rollback: %v", a.addrs)
	}
	r.show(late, "lan", a.addrs)
	setStatus(t, c, late, func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })
	for what := range r.everything() {
		if strings.HasPrefix(what, "PodAttachment") || strings.HasPrefix(what, "IPReservation") {
			t.Errorf("%s is left after the rollback", what)
		}
	}
	// whereabouts continues: it finds and frees the addresses that it gave, and gives the
	// rest.
	if got := r.add("one", lan); got[0] != one[0] {
		t.Errorf("pod one had %s and has %s after the rollback", one[0], got[0])
	}
	if got := r.add("both", dual); !slices.Equal(got, both) {
		t.Errorf("pod both had %v and has %v after the rollback", both, got)
	}
	if _, err := r.cni(t.Context(), "DEL", "one", lan); err != nil {
		t.Error(err)
	}
	if got := r.add("next", lan); slices.Contains([]netip.Addr{goners[0], a.addrs[0]}, got[0]) {
		t.Errorf("whereabouts gave %s twice", got[0])
	}

	// A second rollback, and a second migration.
	if code := call(t, "migrate", "whereabouts", "--rollback", "--kubeconfig", c.Kubeconfig); code.Code != exitOK {
		t.Fatalf("second rollback: %+v", code)
	}
	if _, err := r.cni(t.Context(), "DEL", "next", lan); err != nil {
		t.Error(err)
	}
	// Pod one runs without a record, because a DEL removed it.
	view = askJSON[migration.View](t, c, exitAttention, "migrate", "whereabouts", "--drop-orphans")
	wantFindings = []string{"default " + one[0].String() + " NotRecorded imported", "default " + goners[0].String() + " PodGone dropped"}
	if diff := cmp.Diff(wantFindings, findingsOf(view)); diff != "" || view.Withheld != 0 {
		t.Errorf("migrated again: %+v\n%s", view, diff)
	}
}

// release acts as node and controller for a record whose pod is gone.
func release(t *testing.T, c *cluster.Cluster, a *v1alpha1.PodAttachment) {
	t.Helper()
	s, stop := runStore(t, c)
	defer stop()
	iface := a.Spec.Interfaces[0]
	if err := s.Free(t.Context(), ipam.Holder{PodUID: string(a.HolderUID()), Interface: iface.Name, Namespace: a.Namespace, Pod: a.Spec.PodName}, iface.Domain, nil); err != nil {
		t.Fatal(err)
	}
	// Kubernetes' garbage collector may delete it first.
	strip := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	if err := c.Client.Patch(t.Context(), a, strip); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	if err := c.Client.Delete(t.Context(), a); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
}

// TestMigrateRefuses checks the refusal while whereabouts' programs run, and the error in
// a cluster without whereabouts.
func TestMigrateRefuses(t *testing.T) {
	program := buildWhereabouts(t)
	c := cluster.Exclusive(t)
	none := call(t, "migrate", "whereabouts", "--kubeconfig", c.Kubeconfig)
	if none.Code != exitError || !strings.Contains(none.Stderr, "nothing of whereabouts") {
		t.Errorf("without whereabouts: %+v", none)
	}
	r := newRealWhereabouts(t, c, program)
	r.network("lan", map[string]any{"range": "10.9.0.0/28"})
	labels := map[string]string{"app": "clean-up"}
	reconciler := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "clean-up"},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/whereabouts:v0.9.4"}}},
			},
		},
	}
	create(t, c, reconciler)
	before := r.everything()
	got := call(t, "migrate", "whereabouts", "--kubeconfig", c.Kubeconfig)
	if got.Code != exitError || !strings.Contains(got.Stderr, "kubectl -n "+c.Namespace+" scale deployment clean-up --replicas=0") {
		t.Errorf("with the reconciler: %+v", got)
	}
	if diff := cmp.Diff(before, r.everything()); diff != "" {
		t.Errorf("a refused migration changed something: %s", diff)
	}
	for _, args := range [][]string{{"--rollback", "--drop-orphans"}, {"--dry-run", "--hold"}} {
		if got := call(t, append([]string{"migrate", "whereabouts"}, args...)...); got.Code != exitError || got.Stdout != "" {
			t.Errorf("%v: %+v", args, got)
		}
	}
}

// TestMigrateWhereaboutsSlices covers whereabouts' "fast IPAM": each node has a slice of
// the range, with a pool and a Lease of its own.
func TestMigrateWhereaboutsSlices(t *testing.T) {
	program := buildWhereabouts(t)
	c := cluster.Exclusive(t)
	r := newRealWhereabouts(t, c, program)
	const node = "node-x"
	c.Node(node)
	t.Setenv("NODENAME", node) // whereabouts finds its slice by this name
	slice := &unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{"range": "10.7.0.0/24", "sliceSize": "/28"},
		"status": map[string]any{"allocations": []any{
			map[string]any{"nodeName": "", "sliceRange": "10.7.0.0/28"},
			map[string]any{"nodeName": node, "sliceRange": "10.7.0.16/28"},
		}},
	}}
	slice.SetGroupVersionKind(whereaboutsKind("NodeSlicePool"))
	slice.SetNamespace(c.Namespace)
	slice.SetName("blue")
	status := slice.DeepCopy()
	create(t, c, slice)
	slice.Object["status"] = status.Object["status"]
	if err := c.Client.Status().Update(t.Context(), slice); client.IgnoreNotFound(err) != nil { // some releases have no status subresource
		t.Fatal(err)
	}
	blue := r.network("blue", map[string]any{"range": "10.7.0.0/24", "network_name": "blue", "node_slice_size": "/28"})
	_, addrs := r.run("one", node, "blue", blue)

	view := askJSON[migration.View](t, c, exitOK, "migrate", "whereabouts")
	if len(view.Addresses) != 1 || view.Addresses[0].Domain != "blue" || view.Addresses[0].Addr != addrs[0] || len(view.Findings) != 0 {
		t.Errorf("migration: %+v", view)
	}
	var leases coordinationv1.LeaseList
	if err := c.Client.List(t.Context(), &leases, client.InNamespace(c.Namespace)); err != nil {
		t.Fatal(err)
	}
	for i := range leases.Items {
		if l := &leases.Items[i]; *l.Spec.HolderIdentity != "fairlead-migrate" || !slices.Contains(view.Leases, l.Name) {
			t.Errorf("Lease %s is held by %q", l.Name, *l.Spec.HolderIdentity)
		}
	}
	if got := call(t, "migrate", "whereabouts", "--rollback", "--kubeconfig", c.Kubeconfig); got.Code != exitOK {
		t.Fatalf("rollback: %+v", got)
	}
	if got := r.add("one", blue); got[0] != addrs[0] {
		t.Errorf("pod one had %s and has %s after the rollback", addrs[0], got[0])
	}
	if got := r.add("two", blue); got[0] == addrs[0] {
		t.Errorf("whereabouts gave %s twice", got[0])
	}
}

// TestMigrateWhereaboutsFlatFile covers a network whose range stands in the nodes'
// whereabouts.conf, which the API server does not have.
func TestMigrateWhereaboutsFlatFile(t *testing.T) {
	program := buildWhereabouts(t)
	c := cluster.Exclusive(t)
	r := newRealWhereabouts(t, c, program)
	node := c.Node("node-x")
	if err := os.WriteFile(r.flatFile, []byte(`{"range": "10.6.0.0/28", "exclude": ["10.6.0.0/30"], "network_name": "flat"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	bare := r.network("bare", map[string]any{})
	_, addrs := r.run("one", node.Name, "bare", bare)
	if want := netip.MustParseAddr("10.6.0.4"); addrs[0] != want {
		t.Fatalf("whereabouts gave %s, want %s", addrs[0], want)
	}

	view := askJSON[migration.View](t, c, exitOK, "migrate", "whereabouts", "--dry-run")
	if len(view.Pools) != 0 || !strings.Contains(strings.Join(view.Warnings, "\n"), "network "+c.Namespace+"/bare gets no IPPool") ||
		!strings.Contains(strings.Join(view.Warnings, "\n"), "--flat-file") {
		t.Errorf("without the flat file: %+v", view)
	}
	view = askJSON[migration.View](t, c, exitOK, "migrate", "whereabouts", "--flat-file", r.flatFile)
	if len(view.Pools) != 1 || len(view.Warnings) != 0 || len(view.Addresses) != 1 || view.Addresses[0].Domain != "flat" || view.Addresses[0].Network != c.Namespace+"/bare" {
		t.Fatalf("with the flat file: %+v", view)
	}
	// 14 addresses without three excluded ones and the one in use.
	if given := drain(t, c, view.Pools[0]); len(given) != 10 || slices.Contains(given, addrs[0]) {
		t.Errorf("pool %s gave %v", view.Pools[0], given)
	}
	if got := call(t, "migrate", "whereabouts", "--rollback", "--flat-file", r.flatFile, "--kubeconfig", c.Kubeconfig); got.Code != exitOK {
		t.Errorf("rollback: %+v", got)
	}
	for _, path := range []string{r.program, r.flatFile + ".none"} {
		got := call(t, "migrate", "whereabouts", "--dry-run", "--flat-file", path, "--kubeconfig", c.Kubeconfig)
		if got.Code != exitError || !strings.Contains(got.Stderr, "--flat-file") {
			t.Errorf("%s as flat file: %+v", path, got)
		}
	}
}
