package audit

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/blocktest"
)

// records are the PodAttachments of an API server or of a cache.
type records struct {
	client.Reader
	all []v1alpha1.PodAttachment
	err atomic.Pointer[error]
	// withheld are the addresses that the Comparer withholds.
	withheld atomic.Pointer[[]*ipam.Reservation]
	// listed are the namespaces of the lists.
	mu     sync.Mutex
	listed []string
}

func (r *records) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	for i := range r.all {
		if client.ObjectKeyFromObject(&r.all[i]) == key && r.err.Load() == nil {
			r.all[i].DeepCopyInto(o.(*v1alpha1.PodAttachment))
			return nil
		}
	}
	if err := r.err.Load(); err != nil {
		return *err
	}
	return apierrors.NewNotFound(schema.GroupResource{Resource: "podattachments"}, key.Name)
}

func (r *records) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	within := (&client.ListOptions{}).ApplyOptions(options).Namespace
	r.mu.Lock()
	r.listed = append(r.listed, within)
	r.mu.Unlock()
	out := list.(*v1alpha1.PodAttachmentList)
	for _, o := range r.all {
		if within == "" || o.Namespace == within {
			out.Items = append(out.Items, o)
		}
	}
	return nil
}

// recordNaming returns the record of a pod on node-1 that names an address.
func recordNaming(name, addr string) v1alpha1.PodAttachment {
	uid := types.UID("4ad91b5c-d4a4-4cf0-8bd3-" + name)
	return v1alpha1.PodAttachment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: pod.AttachmentName(name, uid), Finalizers: []string{v1alpha1.ReleaseFinalizer}},
		Spec: v1alpha1.PodAttachmentSpec{
			PodName: name, PodUID: uid, NodeName: "node-1",
			Interfaces: []v1alpha1.Interface{{Name: "eth0", Pool: "lan", Domain: "default", Addresses: []string{addr + "/32"}}},
		},
	}
}

// inStore runs a test with a store and its API.
func inStore(t *testing.T, test func(t *testing.T, s *block.Store, api *blocktest.API)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := block.New(api, block.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { _ = s.Run(ctx) })
		all.Go(func() { api.NewFeed(s).Run(ctx) })
		defer all.Wait()
		defer cancel()
		test(t, s, api)
	})
}

func comparer(s *block.Store, cached, live *records, routed bool) *Comparer {
	return NewComparer(CompareConfig{
		Client: cached, Live: live, Store: s, Synced: func() bool { return true },
		Routed:   func(string) (bool, bool) { return routed, true },
		Withhold: func(lost []*ipam.Reservation) { live.withheld.Store(&lost) },
	})
}

// without returns a pool without the addresses that a Comparer withholds, as the driver's pools do.
func (r *records) without(p *ipam.Pool) *ipam.Pool {
	if lost := r.withheld.Load(); lost != nil {
		return p.Without(*lost)
	}
	return p
}

// The block of a living record is gone. It is made again for the record's node before any
// address is handed out. Addresses that the API server does not name any more are not restored.
func TestCompareRestoresTheBlock(t *testing.T) {
	inStore(t, func(t *testing.T, s *block.Store, api *blocktest.API) {
		cached := &records{all: []v1alpha1.PodAttachment{recordNaming("web", "10.0.0.5"), recordNaming("gone", "10.0.0.6")}}
		live := &records{all: cached.all[:1]}
		c, woken := comparer(s, cached, live, true), 0
		c.OnCompared(func() { woken++ })
		if c.Compared() {
			t.Error("compared before the start")
		}
		if _, err := c.Compare(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !c.Compared() || woken != 1 {
			t.Errorf("compared %v, waiting pods woken %d times", c.Compared(), woken)
		}
		b := api.List()
		if len(b) != 1 || b[0].Spec.Node != "node-1" || b[0].Spec.Used != 1 {
			t.Errorf("blocks %+v, want one of node-1 with one address", b)
		}
		writes := api.Writes()
		if _, err := c.Compare(t.Context()); err != nil || api.Writes() != writes {
			t.Errorf("compared again, it writes; error %v", err)
		}
		if c.End(); c.Compared() {
			t.Error("compared after the end of the term")
		}
	})
}

// An address that another pod has by now is left alone, and stops no other (I8).
func TestCompareLeavesAnothersAddress(t *testing.T) {
	inStore(t, func(t *testing.T, s *block.Store, _ *blocktest.API) {
		addr := netip.MustParseAddr("10.0.0.5")
		heir := ipam.Holder{PodUID: "uid-heir", Interface: "eth0", Namespace: "shop", Pod: "heir"}
		if _, err := s.Take(t.Context(), lan(t, "lan", "10.0.0.0-10.0.0.9"), block.Request{Holder: heir, Addresses: []netip.Addr{addr}}); err != nil {
			t.Fatal(err)
		}
		all := &records{all: []v1alpha1.PodAttachment{recordNaming("web", "10.0.0.5"), recordNaming("other", "10.0.0.6")}}
		c := comparer(s, all, all, false)
		if refused, err := c.Compare(t.Context()); refused != 1 || err != nil || !c.Compared() {
			t.Errorf("compared %v, %d refused, error %v", c.Compared(), refused, err)
		}
		if held := s.Held(heir); len(held) != 1 || held[0].Addr != addr {
			t.Errorf("the heir has %v", held)
		}
		other := ipam.Holder{PodUID: string(all.all[1].Spec.PodUID), Interface: "eth0", Namespace: "shop", Pod: "other"}
		if len(s.Held(other)) != 1 {
			t.Error("the other pod has not got its address back")
		}
	})
}

// Without an answer of the API server nothing counts as compared, until it answers.
func TestCompareNeedsAnAnswer(t *testing.T) {
	inStore(t, func(t *testing.T, s *block.Store, _ *blocktest.API) {
		cached := &records{all: []v1alpha1.PodAttachment{recordNaming("web", "10.0.0.5")}}
		live, noAnswer := &records{all: cached.all}, errors.New("no answer")
		live.err.Store(&noAnswer)
		c := comparer(s, cached, live, false)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		<-time.After(time.Minute)
		if c.Compared() {
			t.Error("compared without an answer")
		}
		live.err.Store(nil)
		<-time.After(time.Minute)
		if !c.Compared() {
			t.Error("not compared after the answer")
		}
		cancel()
		if err := <-done; err != nil || c.Compared() {
			t.Errorf("after the term: error %v, compared %v", err, c.Compared())
		}
	})
}

// The address of a living record is another pod's by now. When that pod gives it back, the
// record's pod gets it before any other pod.
func TestCompareRestoresWhatIsGivenBack(t *testing.T) {
	inStore(t, func(t *testing.T, s *block.Store, _ *blocktest.API) {
		p := lan(t, "lan", "10.0.0.5")
		other := ipam.Holder{PodUID: "uid-other", Interface: "eth0", Namespace: "shop", Pod: "other"}
		if _, err := s.Take(t.Context(), p, block.Request{Holder: other}); err != nil {
			t.Fatal(err)
		}
		all := &records{all: []v1alpha1.PodAttachment{recordNaming("web", "10.0.0.5")}}
		c, ended := comparer(s, all, all, false), make(chan error)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { ended <- c.Run(ctx) }()
		<-time.After(time.Minute)
		if !c.Compared() {
			t.Error("one refused address keeps all others from being handed out")
		}
		if err := s.Free(t.Context(), other, "default", nil); err != nil {
			t.Fatal(err)
		}
		all.err.Store(new(errors.New("no answer"))) // the pauses between two tries grow beyond the cooldown
		for range 12 {
			<-time.After(ipam.MinCooldown)
			now := func() *ipam.Pool { return all.without(p) }
			if _, err := s.Take(t.Context(), now(), block.Request{Holder: other, Now: now}); !errors.Is(err, fault.ErrExhausted) {
				t.Errorf("the address is handed out again: %v", err)
			}
		}
		all.err.Store(nil)
		<-time.After(lastRetry)
		if left := *all.withheld.Load(); len(left) != 0 {
			t.Errorf("%d domains have withheld addresses, and none is lost", len(left))
		}
		if held := s.Held(holderOf(&all.all[0], "eth0")); len(held) != 1 {
			t.Errorf("the record's pod has %v", held)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		// A try every few seconds reads the refused pod's namespace, and not the cluster.
		if again := slices.Compact(slices.Sorted(slices.Values(all.listed[1:]))); all.listed[0] != "" || len(all.listed) < 5 || !slices.Equal(again, []string{"shop"}) {
			t.Errorf("first %q is read, then %q", all.listed[0], again)
		}
	})
}

// The two launchers of a machine that migrates have one address, and its block is lost, or has
// its state from before the migration. Both are holders again, so the address stays taken when
// one of them ends.
func TestCompareRestoresBothLaunchers(t *testing.T) {
	for _, before := range []string{"", "source", "target"} {
		inStore(t, func(t *testing.T, s *block.Store, api *blocktest.API) {
			all := &records{all: []v1alpha1.PodAttachment{recordNaming("source", "10.0.0.5"), recordNaming("target", "10.0.0.5")}}
			all.all[1].Spec.NodeName = "node-2"
			for i := range all.all {
				all.all[i].Spec.Interfaces[0].Claim = "shop/vm"
				if h := holderOf(&all.all[i], "eth0"); h.Pod == before {
					h.Node = all.all[i].Spec.NodeName
					if _, err := s.Take(t.Context(), lan(t, "lan", "10.0.0.5"), block.Request{Holder: h, Claim: "shop/vm"}); err != nil {
						t.Fatal(err)
					}
				}
			}
			if refused, err := comparer(s, all, all, false).Compare(t.Context()); refused != 0 || err != nil {
				t.Errorf("%d refused, error %v", refused, err)
			}
			for i := range all.all {
				if held := s.Held(holderOf(&all.all[i], "eth0")); len(held) != 1 || held[0].Claim != "shop/vm" {
					t.Errorf("%s has %v", all.all[i].Spec.PodName, held)
				}
			}
			if err := s.Free(t.Context(), holderOf(&all.all[0], "eth0"), "default", nil); err != nil {
				t.Fatal(err)
			}
			if b := api.List(); len(b) != 1 || b[0].Spec.Used != 1 || len(s.Held(holderOf(&all.all[1], "eth0"))) != 1 {
				t.Errorf("the address of the target is free: %+v", b)
			}
		})
	}
}
