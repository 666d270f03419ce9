package native

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/blocktest"
	"fairlead.dev/fairlead/test/drivertest"
)

// The time of a deletion is known to the second. Within that second, only an address held
// for a claim can have been given again.
func TestGivenSince(t *testing.T) {
	d := start(t, blocktest.NewAPI(), "a")
	d.pool("a", one("10.0.0.1"))
	r := drivertest.Request(1)
	if _, err := d.Ensure(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	held := d.store.Held(HolderOf(r.Owner))
	if len(held) != 1 {
		t.Fatal("the time when the address was given is unknown")
	}
	given := held[0].Since
	claimed := v1alpha1.Interface{Claim: "t/db-0"}
	for _, tc := range []struct {
		name   string
		owner  driver.Owner
		i      v1alpha1.Interface
		moment time.Time
		want   bool
	}{
		{"before", r.Owner, v1alpha1.Interface{}, given.Add(-2 * time.Second), true},
		{"in the second", r.Owner, v1alpha1.Interface{}, given.Add(-900 * time.Millisecond), false},
		{"in the second, for a claim", r.Owner, claimed, given.Add(-900 * time.Millisecond), true},
		{"after", r.Owner, claimed, given.Add(time.Second), false},
		{"another owner", drivertest.Request(2).Owner, claimed, given.Add(-time.Hour), false},
	} {
		if got := d.givenSince(tc.owner, tc.i, tc.moment); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// A pod's annotations apply to the default network. A further network names its own pools,
// and each interface on it has claims of its own.
func TestRead(t *testing.T) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "web-0", Annotations: map[string]string{v1alpha1.AnnotationPools: "of-the-pod", v1alpha1.AnnotationClaim: "db"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", Controller: new(true)}},
	}}
	read := func(i pod.Interface) *Asks {
		t.Helper()
		got, err := Read(p, &i)
		if err != nil {
			t.Fatal(err)
		}
		return got.(*Asks)
	}
	sticky := v1alpha1.StickyStatefulSet
	if got := read(pod.Default(false)); got.Pools[0] != "of-the-pod" || got.EachPool || got.Claim != "db" || got.Sticky[sticky] != "web-0" {
		t.Errorf("on the default network %+v", got)
	}
	got := read(pod.Interface{Name: "net1", Network: "blue/lab", Pools: []string{"a", "b"}, EachPool: true})
	if len(got.Pools) != 2 || got.Pools[0] != "a" || !got.EachPool || got.Claim != "" || got.Sticky[sticky] != "web-0.net1" {
		t.Errorf("on a further network %+v", got)
	}
	got = read(pod.Interface{Name: "net2", Network: v1alpha1.DefaultNetwork, Pools: []string{"storage"}})
	if len(got.Pools) != 1 || got.Pools[0] != "storage" || got.Claim != "" || got.Sticky[sticky] != "web-0.net2" {
		t.Errorf("on an additional pool %+v", got)
	}
	delete(p.Annotations, v1alpha1.AnnotationClaim)
	p.Annotations[pod.AnnotationPrimaryClaim] = "vm1.default"
	for name, tc := range map[string]struct {
		i    pod.Interface
		want string
	}{
		"the default interface":              {pod.Default(false), "vm1.default"},
		"on a chosen network":                {pod.Interface{Name: "eth0", Network: "blue/lab", Default: true}, "vm1.default"},
		"a chosen network with its own":      {pod.Interface{Name: "eth0", Network: "blue/lab", Default: true, ClaimReference: "vm1.lab"}, "vm1.lab"},
		"of a network that is only on nodes": {pod.Interface{Name: "eth0", Network: v1alpha1.DefaultNetwork, Default: true, ClaimReference: "vm1.lab"}, "vm1.lab"},
		"a further interface":                {pod.Interface{Name: "net1", Network: "blue/lab"}, ""},
	} {
		if got := read(tc.i); got.Reference != tc.want {
			t.Errorf("%s: the IPAMClaim %q, want %q", name, got.Reference, tc.want)
		}
	}
	p.Annotations[v1alpha1.AnnotationPools] = "No Pool"
	if _, err := Read(p, &pod.Interface{Network: "blue/lab"}); driver.Result(err) != "Invalid" {
		t.Errorf("%v", err)
	}
}

// wake calls exactly the requested functions, and reclaimChanged finds a change of the
// policy for unreachable nodes.
func TestWakes(t *testing.T) {
	p := NewPools()
	waiting, leaving := 0, 0
	if err := p.Wake(context.Background(), driver.Wake{Waiting: func() { waiting++ }, Leaving: func() { leaving++ }}); err != nil {
		t.Fatal(err)
	}
	p.wake(true, false)
	p.wake(false, true)
	p.wake(false, false)
	if waiting != 1 || leaving != 1 {
		t.Errorf("called %d and %d times", waiting, leaving)
	}
	minute := v1alpha1.IPPoolSpec{ReclaimAfter: &metav1.Duration{Duration: time.Minute}}
	if is := (&v1alpha1.IPPool{Spec: minute}); reclaimChanged(is, is) || !reclaimChanged(&v1alpha1.IPPool{}, is) {
		t.Error("reclaimChanged does not distinguish a change from none")
	}
}
