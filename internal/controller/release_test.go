package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/controller/proof"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/test/prooftest"
)

// A record whose finalizer was dropped is not released a second time if the reply was
// lost: another leader may have written it again meanwhile with the same addresses (found
// by the simulation, seed 110).
func TestReplyToTheLastWriteIsLost(t *testing.T) {
	metrics, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	lossy, given := &lossyPatches{lost: 2}, &countedReleases{}
	r := New(Config{
		Client: lossy, Drivers: driver.Table{"native": {Driver: given}},
		Turns: NewTurns(1), Metrics: metrics, Events: events.NewFakeRecorder(10),
	})
	record := detachedRecord()
	for range lossy.lost {
		if _, err := r.releaser.release(t.Context(), record, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("error %v, want that of the write", err)
		}
	}
	if _, err := r.releaser.release(t.Context(), record, nil); err != nil {
		t.Error(err)
	}
	if given.releases != 1 || lossy.patches != lossy.lost+1 {
		t.Errorf("given back %d times with %d writes, want once with %d", given.releases, lossy.patches, lossy.lost+1)
	}
	other := record.DeepCopy()
	other.ObjectMeta = metav1.ObjectMeta{Name: "anew", UID: "anew", Finalizers: record.Finalizers, DeletionTimestamp: record.DeletionTimestamp}
	if _, err := r.releaser.release(t.Context(), other, nil); err != nil || given.releases != 2 {
		t.Errorf("the record that was written anew: given back %d times in all, %v; want 2", given.releases, err)
	}
}

// The cache often shows a pod after its record's deletion, since they are different
// watches. The release waits for podCacheLag. After that it asks the API server whether
// the pod lives, as it does if the record was deleted by hand.
func TestPodThatIsStillCached(t *testing.T) {
	metrics, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "t", Name: "web", UID: "pod"}, Spec: corev1.PodSpec{NodeName: "n1"}}
	record := detachedRecord()
	record.Namespace, record.Spec.PodName, record.Spec.PodUID = p.Namespace, p.Name, p.UID
	cases := []struct {
		name     string
		comes    bool        // the cache shows in time that the pod is gone
		live     *corev1.Pod // the pod at the API server
		reads    int
		releases int
	}{
		{"word comes", true, nil, 0, 1},
		{"word does not come, and the pod is gone", false, nil, 1, 1},
		{"the pod lives", false, p, 1, 0},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				live, writes, given := &livePod{p: tc.live}, &lossyPatches{}, &countedReleases{}
				r := New(Config{
					Client: writes, Live: live, Drivers: driver.Table{"native": {Driver: given}}, Nodes: labels.Everything(),
					Turns: NewTurns(1), Metrics: metrics, Events: events.NewFakeRecorder(10),
				})
				result, err := r.releaser.release(t.Context(), record, p)
				if err != nil || result.RequeueAfter <= 0 || result.RequeueAfter > podCacheLag || live.reads+writes.patches+given.releases > 0 {
					t.Fatalf("at first: %+v, %v, %d reads, %d writes, %d given back", result, err, live.reads, writes.patches, given.releases)
				}
				cached := p
				if tc.comes {
					cached = nil
				} else {
					time.Sleep(result.RequeueAfter) //nolint:forbidigo // the bubble's clock
				}
				if result, err = r.releaser.release(t.Context(), record, cached); err != nil || result.RequeueAfter > 0 {
					t.Fatalf("%+v, %v", result, err)
				}
				if live.reads != tc.reads || given.releases != tc.releases || writes.patches != 1 {
					t.Errorf("%d reads, %d given back, %d writes; want %d, %d and the finalizer's", live.reads, given.releases, writes.patches, tc.reads, tc.releases)
				}
			})
		})
	}
}

// detachedRecord is a record that is detached and being deleted.
func detachedRecord() *v1alpha1.PodAttachment {
	return prooftest.Plugged(func(a *v1alpha1.PodAttachment) {
		a.Name, a.UID, a.Finalizers = "record", "record", []string{v1alpha1.ReleaseFinalizer}
		a.Spec.Interfaces = []v1alpha1.Interface{{Name: "eth0", Driver: "native", Network: v1alpha1.DefaultNetwork}}
		a.Status.Sandbox.State = v1alpha1.SandboxDetached
	})
}

// livePod is an API server with one pod, or none.
type livePod struct {
	client.Reader
	p     *corev1.Pod
	reads int
}

func (l *livePod) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	l.reads++
	if l.p == nil {
		return apierrors.NewNotFound(corev1.Resource("pods"), key.Name)
	}
	l.p.DeepCopyInto(o.(*corev1.Pod))
	return nil
}

// lossyPatches is a client whose first patches have no reply. Its cache has every record,
// with the UID equal to the name.
type lossyPatches struct {
	client.Client
	lost, patches int
}

// Get finds every object.
func (c *lossyPatches) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	o.SetUID(types.UID(key.Name))
	return nil
}

func (c *lossyPatches) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	c.patches++
	if c.patches <= c.lost {
		return context.DeadlineExceeded
	}
	return nil
}

// countedReleases is a driver that counts releases.
type countedReleases struct {
	driver.Driver
	releases int
}

func (d *countedReleases) Release(context.Context, driver.Ref) error {
	d.releases++
	return nil
}

// The event about a collected interface names its pool or domain if its network is not
// known any more.
func TestNetworkOf(t *testing.T) {
	r := New(Config{Drivers: driver.Table{"native": {Networks: driver.Networks{Origin: func(i v1alpha1.Interface) string {
		if i.Pool != "" {
			return "pool " + i.Pool
		}
		return "domain " + i.Domain
	}}}}})
	for want, iface := range map[string]v1alpha1.Interface{
		"network default":    {Network: v1alpha1.DefaultNetwork},
		"network blue/net-a": {Network: "blue/net-a", Pool: "a"},
		"a further network that is not known any more, of pool lab":   {Network: v1alpha1.UnknownNetwork, Driver: "native", Pool: "lab", Domain: "lab"},
		"a further network that is not known any more":                {Network: v1alpha1.UnknownNetwork, Driver: "memory"},
		"a further network that is not known any more, of domain lab": {Network: v1alpha1.UnknownNetwork, Driver: "native", Domain: "lab"},
	} {
		if got := r.releaser.networkOf(iface); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The API server refuses an event whose text is longer than 1,024 bytes, as that of an
// interface with many addresses on a network with a long name would be.
func TestEventOfAReleaseWithManyAddresses(t *testing.T) {
	record := detachedRecord()
	i := v1alpha1.Interface{Name: "net1", Network: strings.Repeat("n", 63) + "/" + strings.Repeat("w", 253)}
	for n := range 16 {
		i.Addresses = append(i.Addresses, fmt.Sprintf("2001:db8:1111:2222:3333:4444:5555:%x/64", 0x1000+n))
	}
	record.Spec.Interfaces = []v1alpha1.Interface{i}
	recorder := events.NewFakeRecorder(1)
	r := New(Config{Drivers: driver.Table{}, Turns: NewTurns(1), Events: recorder})
	r.releaser.announce(record, proof.Verdict{Proof: proof.ByPolicy, Text: "node n1 has been unreachable since 2026-11-28T01:00:00Z, and the policy of its pools is to wait 10m0s: if its pods still run, an address is now in use twice"})
	_, note, _ := strings.Cut(<-recorder.Events, eventCollected+" ")
	if len(note) > 1024 || !strings.HasPrefix(note, "gave back 2001:db8:") {
		t.Errorf("a note of %d bytes: %s", len(note), note)
	}
}
