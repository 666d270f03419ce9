// Package drivertest tests the driver contract. It has a suite that every driver, real or
// fake, passes, and a driver in memory for other tests.
package drivertest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/fault"
)

// Backend is an empty backend of a driver. Each case of the suite gets one of its own.
type Backend struct {
	// Start returns a driver on this backend. A further call stands for the process after
	// a crash: that driver knows only the backend.
	Start func(t *testing.T) driver.Driver
	// Capacity is the number of interfaces for which the backend has room, 4 to 64.
	Capacity int
	// Recover makes released interfaces available again, for example by letting time pass.
	Recover func()
	// Interrupt makes the backend call do, once, during the next write of a driver: before
	// the write, or after it, before the driver gets the reply.
	Interrupt func(after bool, do func())
	// OwnBinding is true for a driver that chooses the binding of every interface itself,
	// and refuses one that its network has.
	OwnBinding bool
}

// Run runs the suite. It calls fresh for each case.
func Run(t *testing.T, fresh func(t *testing.T) Backend) {
	cases := []struct {
		name string
		run  func(t *testing.T, b Backend)
	}{
		{"an interface is complete", testComplete},
		{"an interface has the binding of its network", testBinding},
		{"a second Ensure returns the same", testEnsureAgain},
		{"a process after a crash adopts", testAdopt},
		{"owners never share", testDistinct},
		{"owners at once never share", testConcurrent},
		{"Release gives back, and a second Release changes nothing", testRelease},
		{"Release after a crash needs the record only", testReleaseAfterCrash},
		{"Release never takes from another", testReleaseForeign},
		{"a UID alone is no identity", testBorrowedUID},
		{"an exhausted network returns ErrExhausted, and recovers", testExhausted},
		{"List has each interface once", testList},
		{"Confirm returns the current state", testConfirm},
		{"a context that ends before a write leaves nothing lost", func(t *testing.T, b Backend) { testCancelled(t, b, false) }},
		{"a context that ends after a write leaves nothing lost", func(t *testing.T, b Backend) { testCancelled(t, b, true) }},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) { tc.run(t, fresh(t)) })
	}
}

// Request returns the request of the nth owner for eth0 on the default network.
func Request(n int) *driver.Request {
	return &driver.Request{
		Owner: driver.Owner{
			PodUID:    types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", n)),
			Interface: "eth0",
			Namespace: "default",
			PodName:   fmt.Sprintf("pod-%d", n),
			NodeName:  "node-1",
		},
		Network:    v1alpha1.DefaultNetwork,
		Default:    true,
		NodeLabels: map[string]string{},
	}
}

func ensure(t *testing.T, d driver.Driver, n int) driver.Ref {
	t.Helper()
	r := Request(n)
	a, err := d.Ensure(t.Context(), r)
	if err != nil {
		t.Fatalf("Ensure %s: %v", r.PodName, err)
	}
	return driver.Ref{Owner: r.Owner, Interface: a.Interface}
}

func release(t *testing.T, d driver.Driver, ref driver.Ref) {
	t.Helper()
	if err := d.Release(t.Context(), ref); err != nil {
		t.Fatalf("Release %s: %v", ref.PodName, err)
	}
}

// held returns everything that List yields, by "pod/interface".
func held(t *testing.T, d driver.Driver) map[string]driver.Ref {
	t.Helper()
	all := map[string]driver.Ref{}
	for ref, err := range d.List(t.Context()) {
		if err != nil {
			t.Fatalf("List: %v", err)
		}
		key := ref.PodName + "/" + ref.Owner.Interface
		if _, twice := all[key]; twice {
			t.Errorf("List has %s twice", key)
		}
		all[key] = ref
	}
	return all
}

func testComplete(t *testing.T, b Backend) {
	got := ensure(t, b.Start(t), 1).Interface
	if got.Name != "eth0" || got.Network != v1alpha1.DefaultNetwork || got.Driver == "" || !got.Default {
		t.Errorf("name, network, driver or default is wrong: %+v", got)
	}
	if got.Binding == (v1alpha1.Binding{}) {
		t.Errorf("no binding: %+v", got)
	}
	if len(got.Addresses) == 0 {
		t.Errorf("no address: %+v", got)
	}
	if got.Binding.Routed != nil {
		wantRouted(t, got)
	}
}

// wantRouted checks that the node is the only neighbour of an interface: its addresses are single, and
// every gateway is the node's.
func wantRouted(t *testing.T, i v1alpha1.Interface) {
	t.Helper()
	for _, a := range i.Addresses {
		if p, err := netip.ParsePrefix(a); err != nil || !p.IsSingleIP() {
			t.Errorf("address %s of a routed interface is not single", a)
		}
	}
	via := slices.Clone(i.Gateways)
	for _, r := range i.Routes {
		via = append(via, r.Gateway)
	}
	for _, gw := range via {
		if gw != v1alpha1.RoutedGatewayV4 && gw != v1alpha1.RoutedGatewayV6 {
			t.Errorf("gateway %q of a routed interface is not the node", gw)
		}
	}
}

func testBinding(t *testing.T, b Backend) {
	r := Request(1)
	r.Binding = &v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{Parent: "bond0", Mode: "vepa"}}
	d := b.Start(t)
	a, err := d.Ensure(t.Context(), r)
	if b.OwnBinding {
		if all := held(t, d); !errors.Is(err, fault.ErrInvalid) || len(all) != 0 {
			t.Errorf("Ensure with a binding: %v, want ErrInvalid; held are %v", err, all)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(*r.Binding, a.Interface.Binding); diff != "" {
		t.Errorf("the binding differs (-want +got):\n%s", diff)
	}
}

func testEnsureAgain(t *testing.T, b Backend) {
	d := b.Start(t)
	first, second := ensure(t, d, 1), ensure(t, d, 1)
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("a second Ensure differs (-first +second):\n%s", diff)
	}
	if n := len(held(t, d)); n != 1 {
		t.Errorf("%d interfaces held, want 1", n)
	}
}

func testAdopt(t *testing.T, b Backend) {
	first := ensure(t, b.Start(t), 1)
	next := b.Start(t)
	if diff := cmp.Diff(first, ensure(t, next, 1)); diff != "" {
		t.Errorf("the next process got another interface (-first +second):\n%s", diff)
	}
	if n := len(held(t, next)); n != 1 {
		t.Errorf("%d interfaces held, want 1", n)
	}
}

func testDistinct(t *testing.T, b Backend) {
	d := b.Start(t)
	seen := map[string]int{}
	for n := range b.Capacity {
		for _, a := range ensure(t, d, n).Interface.Addresses {
			if other, taken := seen[a]; taken {
				t.Errorf("owners %d and %d both have %s", other, n, a)
			}
			seen[a] = n
		}
	}
}

func testConcurrent(t *testing.T, b Backend) {
	d := b.Start(t)
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		seen = map[string]int{}
	)
	for n := range b.Capacity {
		for range 2 { // each owner twice at once
			wg.Go(func() {
				a, err := d.Ensure(t.Context(), Request(n))
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Errorf("Ensure: %v", err)
					return
				}
				for _, addr := range a.Interface.Addresses {
					if other, taken := seen[addr]; taken && other != n {
						t.Errorf("owners %d and %d both have %s", other, n, addr)
					}
					seen[addr] = n
				}
			})
		}
	}
	wg.Wait()
	if n := len(held(t, d)); n != b.Capacity {
		t.Errorf("%d interfaces held, want %d", n, b.Capacity)
	}
}

func testRelease(t *testing.T, b Backend) {
	d := b.Start(t)
	ref := ensure(t, d, 1)
	release(t, d, ref)
	release(t, d, ref)
	if all := held(t, d); len(all) != 0 {
		t.Errorf("still held: %v", all)
	}
	unknown := driver.Ref{Owner: Request(2).Owner, Interface: ref.Interface}
	release(t, d, unknown)
}

func testReleaseAfterCrash(t *testing.T, b Backend) {
	ref := ensure(t, b.Start(t), 1)
	next := b.Start(t)
	release(t, next, ref)
	if all := held(t, next); len(all) != 0 {
		t.Errorf("still held: %v", all)
	}
}

func testReleaseForeign(t *testing.T, b Backend) {
	d := b.Start(t)
	owned := ensure(t, d, 1)
	foreign := driver.Ref{Owner: Request(2).Owner, Interface: owned.Interface}
	release(t, d, foreign)
	if _, ok := held(t, d)["pod-1/eth0"]; !ok {
		t.Errorf("a record that names pod-1's addresses under pod-2 took them away")
	}
	if diff := cmp.Diff(owned, ensure(t, d, 1)); diff != "" {
		t.Errorf("pod-1 has another interface now (-before +after):\n%s", diff)
	}
}

// testBorrowedUID has pods with the UID of another pod. A pod of another namespace or name
// can neither obtain, confirm nor release the interface of the owner.
func testBorrowedUID(t *testing.T, b Backend) {
	d := b.Start(t)
	owned := ensure(t, d, 1)
	for _, change := range []func(*driver.Owner){
		func(o *driver.Owner) { o.Namespace = "other" },
		func(o *driver.Owner) { o.PodName = "other" },
	} {
		r := Request(1)
		change(&r.Owner)
		foreign := driver.Ref{Owner: r.Owner, Interface: owned.Interface}
		if _, err := d.Confirm(t.Context(), foreign); !errors.Is(err, fault.ErrNotFound) {
			t.Errorf("Confirm of pod-1's for %s/%s: %v, want ErrNotFound", r.Namespace, r.PodName, err)
		}
		release(t, d, foreign)
		a, err := d.Ensure(t.Context(), r)
		if err != nil {
			t.Fatalf("Ensure %s/%s: %v", r.Namespace, r.PodName, err)
		}
		for _, address := range a.Interface.Addresses {
			if slices.Contains(owned.Interface.Addresses, address) {
				t.Errorf("%s/%s, with the UID of pod-1, has its %s", r.Namespace, r.PodName, address)
			}
		}
		release(t, d, driver.Ref{Owner: r.Owner, Interface: a.Interface})
		if diff := cmp.Diff(owned, ensure(t, b.Start(t), 1)); diff != "" {
			t.Errorf("pod-1 has another interface now (-before +after):\n%s", diff)
		}
	}
}

func testExhausted(t *testing.T, b Backend) {
	d := b.Start(t)
	var first driver.Ref
	for n := range b.Capacity {
		if ref := ensure(t, d, n); n == 0 {
			first = ref
		}
	}
	_, err := d.Ensure(t.Context(), Request(b.Capacity))
	if !errors.Is(err, fault.ErrExhausted) {
		t.Fatalf("Ensure on a full network: %v, want ErrExhausted", err)
	}
	if n := len(held(t, d)); n != b.Capacity {
		t.Errorf("%d interfaces held, want %d: a failed Ensure left or took something", n, b.Capacity)
	}
	release(t, d, first)
	b.Recover()
	ensure(t, d, b.Capacity)
}

func testList(t *testing.T, b Backend) {
	d := b.Start(t)
	want := map[string]driver.Ref{}
	for n := range 3 {
		want[fmt.Sprintf("pod-%d/eth0", n)] = ensure(t, d, n)
	}
	got := held(t, b.Start(t))
	for key, ref := range want {
		listed, ok := got[key]
		if !ok {
			t.Errorf("%s is not listed", key)
			continue
		}
		if diff := cmp.Diff(ref.Owner, listed.Owner); diff != "" {
			t.Errorf("%s: the owner differs (-want +got):\n%s", key, diff)
		}
		release(t, d, listed) // a listed Ref can be released
	}
	if all := held(t, d); len(all) != 0 {
		t.Errorf("still held after releasing all that was listed: %v", all)
	}
}

// testConfirm confirms a listed interface before and after another process releases it.
func testConfirm(t *testing.T, b Backend) {
	ensure(t, b.Start(t), 1)
	d := b.Start(t)
	ref := held(t, d)["pod-1/eth0"]
	left, err := d.Confirm(t.Context(), ref)
	if diff := cmp.Diff(ref.Interface, left); err != nil || diff != "" {
		t.Errorf("Confirm of a held interface: %v (-listed +confirmed):\n%s", err, diff)
	}
	foreign := driver.Ref{Owner: Request(2).Owner, Interface: ref.Interface}
	if _, err := d.Confirm(t.Context(), foreign); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("Confirm for another owner: %v, want ErrNotFound", err)
	}
	release(t, b.Start(t), ref)
	b.Recover()
	ensure(t, b.Start(t), 2) // may get the address of the first
	if _, err := d.Confirm(t.Context(), ref); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("Confirm after another process released it: %v, want ErrNotFound", err)
	}
}

// testCancelled ends the context of an Ensure while its write is under way. This Ensure may
// fail or succeed. After the next one the owner has one interface.
func testCancelled(t *testing.T, b Backend, after bool) {
	d := b.Start(t)
	ensure(t, d, 0) // a backend may make objects for the first owner only
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b.Interrupt(after, cancel)
	first, err := d.Ensure(ctx, Request(1))
	if ctx.Err() == nil {
		t.Fatal("Ensure made no write")
	}
	ref := ensure(t, d, 1) // the same driver: it knows the write that is under way
	next := b.Start(t)
	if diff := cmp.Diff(ref, ensure(t, next, 1)); diff != "" {
		t.Errorf("the next process has another interface (-this +next):\n%s", diff)
	}
	if err == nil {
		if diff := cmp.Diff(ref.Interface, first.Interface); diff != "" {
			t.Errorf("the interrupted Ensure returned another interface (-now +then):\n%s", diff)
		}
	}
	if n := len(held(t, b.Start(t))); n != 2 {
		t.Errorf("%d interfaces held, want 2", n)
	}
	release(t, next, ref)
	if _, ok := held(t, b.Start(t))["pod-1/eth0"]; ok {
		t.Error("still held after the release")
	}
}
