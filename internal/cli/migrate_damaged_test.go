package cli

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/migration"
	"fairlead.dev/fairlead/internal/migrate"
	"fairlead.dev/fairlead/test/cluster"
)

// damage writes objects of whereabouts by hand.
type damage struct {
	*realWhereabouts
	ranges []netip.Prefix
}

// allocate writes the pools, with entries "pod address".
func (d *damage) allocate(entries ...string) {
	d.t.Helper()
	for _, r := range d.ranges {
		allocations := map[string]any{}
		for _, e := range entries {
			pod, addr, _ := strings.Cut(e, " ")
			if a := netip.MustParseAddr(addr); r.Contains(a) {
				allocations[string('0'+a.AsSlice()[a.BitLen()/8-1])] = map[string]any{"id": pod + "-sandbox", "podref": d.Namespace + "/" + pod, "ifname": "net1"}
			}
		}
		d.write("IPPool", migrate.PoolName("", "", r), map[string]any{"range": r.String(), "allocations": allocations})
	}
}

// reserve writes the reservations of "pod address".
func (d *damage) reserve(entries ...string) {
	d.t.Helper()
	for _, e := range entries {
		pod, addr, _ := strings.Cut(e, " ")
		d.write("OverlappingRangeIPReservation", migrate.ReservationName("", netip.MustParseAddr(addr)), map[string]any{"podref": d.Namespace + "/" + pod, "ifname": "net1"})
	}
}

func (d *damage) write(kind, name string, spec map[string]any) {
	d.t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	o.SetGroupVersionKind(whereaboutsKind(kind))
	o.SetNamespace(d.Namespace)
	o.SetName(name)
	create(d.t, d.Cluster, o)
}

// recorded returns whereabouts' allocations and reservations, as "pod address".
func (d *damage) recorded() (allocations, reservations []string) {
	d.t.Helper()
	pools, err := d.list(d.t.Context(), whereaboutsKind("IPPool"))
	if err != nil {
		d.t.Fatal(err)
	}
	for _, o := range pools {
		text, _, _ := unstructured.NestedString(o.Object, "spec", "range")
		entries, _, _ := unstructured.NestedMap(o.Object, "spec", "allocations")
		first := netip.MustParsePrefix(text).Addr()
		for offset, e := range entries {
			raw := first.AsSlice()
			raw[len(raw)-1] += offset[0] - '0'
			a, _ := netip.AddrFromSlice(raw)
			allocations = append(allocations, d.podOf(e.(map[string]any))+" "+a.String())
		}
	}
	objects, err := d.list(d.t.Context(), whereaboutsKind("OverlappingRangeIPReservation"))
	if err != nil {
		d.t.Fatal(err)
	}
	for _, o := range objects {
		spec, _, _ := unstructured.NestedMap(o.Object, "spec")
		reservations = append(reservations, d.podOf(spec)+" "+o.GetName())
	}
	slices.Sort(allocations)
	slices.Sort(reservations)
	return allocations, reservations
}

func (d *damage) podOf(entry map[string]any) string {
	return strings.TrimPrefix(entry["podref"].(string), d.Namespace+"/")
}

// pod creates a running pod; its network-status shows addr if that is not empty.
func (d *damage) pod(name, node, addr string) *corev1.Pod {
	d.t.Helper()
	p := d.Pod(name, node)
	if addr != "" {
		d.show(p, "lan", []netip.Addr{netip.MustParseAddr(addr)})
	}
	setStatus(d.t, d.Cluster, p, func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })
	return p
}

// TestMigrateDamaged migrates a cluster whose records are damaged as whereabouts v0.9.4
// damages them (research 1.10): an address on three pods, addresses with only one kind of
// record, pods that show no address, and an entry of the other family that a DEL left. A
// person repairs the entries, migrates again, and rolls back.
func TestMigrateDamaged(t *testing.T) {
	program := buildWhereabouts(t)
	c := cluster.Exclusive(t)
	d := &damage{newRealWhereabouts(t, c, program), []netip.Prefix{netip.MustParsePrefix("10.9.0.0/28"), netip.MustParsePrefix("fd00:9::/64")}}
	node := c.Node("node-x", func(n *corev1.Node) { n.Status.NodeInfo.BootID = "boot-1" }).Name
	lan := d.network("lan", map[string]any{"range": "10.9.0.0/28", "ipRanges": []map[string]any{{"range": "fd00:9::/64"}}})
	d.allocate("silent 10.9.0.2", "allocated 10.9.0.4", "starting 10.9.0.5", "gone fd00:9::1")
	d.reserve("silent 10.9.0.2", "reserved 10.9.0.3", "starting 10.9.0.5", "gone fd00:9::1")
	d.pod("one", node, "10.9.0.1") // defect 2: no record has these three
	two, three := d.pod("two", node, "10.9.0.1"), d.pod("three", node, "10.9.0.1")
	d.pod("silent", node, "")            // defect 4: its address would be freed
	d.pod("reserved", node, "10.9.0.3")  // defect 1, whereabouts#712
	d.pod("allocated", node, "10.9.0.4") // defect 3
	starting := d.Pod("starting", node)  // defect 4

	wantFindings := []string{
		"default 10.9.0.1 Duplicate withheld",
		"default 10.9.0.2 NotVerified imported",
		"default 10.9.0.3 NoAllocation reported",
		"default 10.9.0.4 NoReservation reported",
		"default 10.9.0.5 NotYetShown withheld",
		"default fd00:9::1 PodGone withheld", // defect 5
	}
	before := d.everything()
	view := askJSON[migration.View](t, c, exitAttention, "migrate", "whereabouts", "--dry-run")
	if diff := cmp.Diff(wantFindings, findingsOf(view)); diff != "" {
		t.Errorf("dry run: %s", diff)
	}
	if diff := cmp.Diff(before, d.everything()); diff != "" {
		t.Errorf("a dry run changed something: %s", diff)
	}
	view = askJSON[migration.View](t, c, exitAttention, "migrate", "whereabouts")
	if diff := cmp.Diff(wantFindings, findingsOf(view)); diff != "" || view.New != 3 || view.NewRecords != 3 || view.Withheld != 3 {
		t.Errorf("migration: %+v\n%s", view, diff)
	}
	d.explained()
	i := slices.IndexFunc(view.Pools, func(name string) bool { return strings.HasPrefix(name, "wb-10.9.0.0-28") })
	if i < 0 {
		t.Fatalf("pools %q", view.Pools)
	}
	// Only free addresses are allocated: none that is in use or withheld.
	given := drain(t, c, view.Pools[i])
	if len(given) != 9 || slices.ContainsFunc(given, func(a netip.Addr) bool { return a.Less(netip.MustParseAddr("10.9.0.6")) }) {
		t.Errorf("pool %s gave %v, want the 9 addresses from 10.9.0.6 on", view.Pools[i], given)
	}
	if again := askJSON[migration.View](t, c, exitAttention, "migrate", "whereabouts"); again.New != 0 || again.NewRecords != 0 || again.Withheld != 3 {
		t.Errorf("migrated again: %+v", again)
	}

	// The repairs that the findings ask for.
	d.delete(two)
	d.delete(three)
	d.show(starting, "lan", []netip.Addr{netip.MustParseAddr("10.9.0.5")})
	setStatus(t, c, starting, func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })
	view = askJSON[migration.View](t, c, exitAttention, "migrate", "whereabouts")
	wantFindings[0], wantFindings = "default 10.9.0.1 NotRecorded imported", slices.Delete(wantFindings, 4, 5)
	if diff := cmp.Diff(wantFindings, findingsOf(view)); diff != "" || view.New != 2 || view.NewRecords != 2 || view.Withheld != 1 {
		t.Errorf("migrated when it was mended: %+v\n%s", view, diff)
	}
	d.explained()

	// The sandbox IDs of two pods are unknown: whereabouts' DEL will not find their
	// entries.
	got := call(t, "migrate", "whereabouts", "--rollback", "--kubeconfig", c.Kubeconfig)
	if got.Code != exitAttention || strings.Count(got.Stdout, string(migrate.NoContainer)) != 2 {
		t.Fatalf("rollback: %+v", got)
	}
	for what := range d.everything() {
		if strings.HasPrefix(what, "PodAttachment") || strings.HasPrefix(what, "IPReservation") {
			t.Errorf("%s is left after the rollback", what)
		}
	}
	// Both kinds of record have the addresses in use, and the addresses that were never
	// imported.
	allocations, reservations := d.recorded()
	want := []string{"allocated 10.9.0.4", "gone fd00:9::1", "one 10.9.0.1", "reserved 10.9.0.3", "silent 10.9.0.2", "starting 10.9.0.5"}
	if diff := cmp.Diff(want, allocations); diff != "" {
		t.Errorf("allocations after the rollback: %s", diff)
	}
	want[1] = "gone fd00-9--1"
	if diff := cmp.Diff(want, reservations); diff != "" {
		t.Errorf("reservations after the rollback: %s", diff)
	}
	d.Pod("next", node)
	if got := d.add("next", lan); got[0] != netip.MustParseAddr("10.9.0.6") {
		t.Errorf("whereabouts went on with %v, want 10.9.0.6", got)
	}
}

// explained fails the test if an address has two holders or an unknown holder.
func (d *damage) explained() {
	d.t.Helper()
	found := call(d.t, "ipam", "audit", "--kubeconfig", d.Kubeconfig)
	if strings.Contains(found.Stdout, "I1 ") || strings.Contains(found.Stdout, "I2 ") || found.Stderr != "" {
		d.t.Errorf("audit: %+v", found)
	}
	var records v1alpha1.PodAttachmentList
	if err := d.Client.List(d.t.Context(), &records); err != nil {
		d.t.Fatal(err)
	}
	for _, r := range records.Items {
		if s := r.Status.Sandbox; s == nil || s.State != v1alpha1.SandboxAttached || s.BootID != "boot-1" {
			d.t.Errorf("PodAttachment %s has sandbox %+v", r.Name, s)
		}
	}
}
