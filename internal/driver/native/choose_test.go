package native

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/test/blocktest"
	"fairlead.dev/fairlead/test/drivertest"
)

// inMemory is the driver with a block store on an API in memory.
type inMemory struct {
	*Driver
	t     *testing.T
	pools *Pools
	store *block.Store
}

// start runs a driver whose default network has the pools, in the order of names. The
// operator's namespace is blue: its networks may draw from every pool.
func start(t *testing.T, api *blocktest.API, names ...string) *inMemory {
	t.Helper()
	s := block.New(api, block.Config{FreeLinger: -1})
	for _, b := range api.List() {
		s.Observe(b)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the store ended with: %v", err)
		}
	})
	pools := NewPools()
	return &inMemory{New(Config{Pools: names, Namespace: "blue"}, pools, s), t, pools, s}
}

func (d *inMemory) pool(name string, spec v1alpha1.IPPoolSpec) {
	d.pools.observe(&v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec})
}

// get obtains an interface and returns its pool and addresses: "a 10.0.0.1/32".
func (d *inMemory) get(r *driver.Request) string {
	d.t.Helper()
	a, err := d.Ensure(d.t.Context(), r)
	if err != nil {
		d.t.Fatalf("pod %s: %v", r.PodName, err)
	}
	return a.Interface.Pool + " " + strings.Join(a.Interface.Addresses, ",")
}

// refused fails the test unless Ensure fails with the result and every text in its error.
func (d *inMemory) refused(r *driver.Request, result string, texts ...string) {
	d.t.Helper()
	a, err := d.Ensure(d.t.Context(), r)
	if driver.Result(err) != result {
		d.t.Fatalf("%s: %v, want %s; interface %v", driver.Result(err), err, result, a)
	}
	for _, want := range texts {
		if want != "" && !strings.Contains(fmt.Sprint(err), want) {
			d.t.Errorf("%q is not in: %v", want, err)
		}
	}
}

// loseReply calls Ensure for the first pod. Its write succeeds, the reply is lost, and
// Ensure ends before the driver has read the outcome.
func (d *inMemory) loseReply(api *blocktest.API) {
	d.t.Helper()
	ctx, cancel := context.WithCancel(d.t.Context())
	api.Hook(func(c blocktest.Call) blocktest.Fault {
		if c.Verb == "get" {
			cancel()
		}
		return blocktest.Fault{After: blocktest.ErrLost}
	})
	if _, err := d.Ensure(ctx, drivertest.Request(1)); driver.Result(err) != "Unavailable" {
		d.t.Fatalf("%s: %v", driver.Result(err), err)
	}
	api.Hook(func(blocktest.Call) blocktest.Fault { return blocktest.Fault{} })
}

// asks returns the Asks of a request, to be filled in.
func asks(r *driver.Request) *Asks {
	if r.Asks == nil {
		r.Asks = &Asks{}
	}
	return r.Asks.(*Asks)
}

func labelled(n int, namespace, pod, node map[string]string) *driver.Request {
	r := drivertest.Request(n)
	r.NamespaceLabels, r.PodLabels, r.NodeLabels = namespace, pod, node
	return r
}

func one(address string) v1alpha1.IPPoolSpec {
	return v1alpha1.IPPoolSpec{Ranges: []string{address}}
}

func selects(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

func TestSelectors(t *testing.T) {
	team, web, ssd, none := map[string]string{"team": "a"}, map[string]string{"app": "web"}, map[string]string{"disk": "ssd"}, map[string]string{}
	all := v1alpha1.IPPoolSpec{NamespaceSelector: selects("team", "a"), PodSelector: selects("app", "web"), NodeSelector: selects("disk", "ssd")}
	cases := []struct {
		name                 string
		spec                 v1alpha1.IPPoolSpec
		namespace, pod, node map[string]string
		result               string
		texts                []string
	}{
		{"no selectors, nothing known", v1alpha1.IPPoolSpec{}, nil, nil, nil, "OK", nil},
		{"empty selectors match all", v1alpha1.IPPoolSpec{PodSelector: &metav1.LabelSelector{}}, none, none, none, "OK", nil},
		{"all match", all, team, web, ssd, "OK", nil},
		{"the namespace does not", all, none, web, ssd, "NotFound", []string{"spec.namespaceSelector", "team=a"}},
		{"the pod does not", all, team, none, ssd, "NotFound", []string{"spec.podSelector", "app=web"}},
		{"the node does not", all, team, web, none, "NotFound", []string{"spec.nodeSelector", "disk=ssd"}},
		{"the namespace is not known yet", all, nil, web, ssd, "Unavailable", []string{"namespace"}},
		{"the node is not known yet", all, team, web, nil, "Unavailable", []string{"node"}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			d := start(t, blocktest.NewAPI(), "a")
			tc.spec.Ranges = []string{"10.0.0.7"}
			d.pool("a", tc.spec)
			r := labelled(1, tc.namespace, tc.pod, tc.node)
			if tc.result == "OK" {
				d.get(r)
				return
			}
			d.refused(r, tc.result, tc.texts...)
		})
	}
}

// The error names the field of an invalid selector along with all other invalid fields.
func TestInvalidSelector(t *testing.T) {
	d := start(t, blocktest.NewAPI(), "a")
	d.pool("a", v1alpha1.IPPoolSpec{
		Ranges:       []string{"10.0.0.1/24"},
		NodeSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "disk", Operator: "Is"}}},
	})
	d.refused(drivertest.Request(1), "Invalid", "spec.ranges[0]", "spec.nodeSelector", `"Is"`)
}

// Pools are tried in order. If a pool is exhausted, missing, invalid or does not match, the
// next is tried. If no pool serves the pod, the error names each.
func TestFallback(t *testing.T) {
	d := start(t, blocktest.NewAPI(), "missing", "wrong", "ssd", "small", "large")
	d.pool("wrong", one("10.0.0.1/24"))
	d.pool("ssd", v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.0/24"}, NodeSelector: selects("disk", "ssd")})
	d.pool("small", one("10.2.0.7"))
	d.pool("large", one("10.3.0.1-10.3.0.2"))
	request := func(n int) *driver.Request { return labelled(n, nil, nil, map[string]string{}) }
	got := []string{d.get(request(1)), d.get(request(2)), d.get(request(3))}
	if diff := cmp.Diff([]string{"small 10.2.0.7/32", "large 10.3.0.1/32", "large 10.3.0.2/32"}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	d.refused(request(4), "Exhausted",
		"pool missing", "there is no IPPool", "pool wrong", "spec.ranges[0]", "pool ssd", "spec.nodeSelector",
		"pool small", "pool large", "usable=2 free=0 allocated=2 cooling=0 held=0 reserved=0")
	// A pod with an address keeps it.
	if again := d.get(request(1)); again != got[0] {
		t.Errorf("%s, before %s", again, got[0])
	}
	// The annotation replaces the list, also if it names fewer pools.
	r := request(5)
	asks(r).Pools = []string{"ssd"}
	d.refused(r, "NotFound", "pool ssd")
	asks(r).Pools = []string{"missing", "wrong"}
	d.refused(r, "Invalid", "pool missing", "pool wrong")
	asks(r).Pools = []string{"missing", "ssd"}
	d.refused(r, "NotFound", "pool missing", "pool ssd")
	r.NodeLabels = map[string]string{"disk": "ssd"}
	if got := d.get(r); !strings.HasPrefix(got, "ssd ") {
		t.Errorf("got %s", got)
	}
}

// All addresses of an interface come from one pool. A pool without a free address of one
// family yields no address of the other.
func TestDualStackFallsBackWhole(t *testing.T) {
	d := start(t, blocktest.NewAPI(), "a", "b")
	d.pool("a", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.1", "fd00::1-fd00::2"}})
	d.pool("b", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.1.1", "fd00:1::1"}})
	got := []string{d.get(drivertest.Request(1)), d.get(drivertest.Request(2))}
	if diff := cmp.Diff([]string{"a 10.0.0.1/32,fd00::1/128", "b 10.0.1.1/32,fd00:1::1/128"}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A pod got an address of one family from a pool that is exhausted in the other. Another
// pool with free addresses of both families serves it.
func TestHalfDoesNotBindToItsPool(t *testing.T) {
	d := start(t, blocktest.NewAPI(), "a", "b")
	d.pool("a", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.1-10.0.0.2", "fd00::1"}})
	d.pool("b", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.1.1", "fd00:1::1"}})
	d.get(drivertest.Request(1))
	d.get(drivertest.Request(2))
	d.refused(drivertest.Request(3), "Exhausted")
	d.refused(drivertest.Request(3), "Exhausted")
	d.pool("b", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.1.1-10.0.1.2", "fd00:1::1-fd00:1::2"}})
	if diff := cmp.Diff("b 10.0.1.2/32,fd00:1::2/128", d.get(drivertest.Request(3))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// After a crash an owner gets the addresses that it has, even if the network names other
// pools, the selectors no longer match, the quota is exceeded, or the address is reserved.
func TestAdoptsDespiteChangedPools(t *testing.T) {
	api := blocktest.NewAPI()
	before := start(t, api, "a")
	before.pool("a", one("10.0.0.0/24"))
	want := before.get(labelled(1, nil, nil, map[string]string{}))
	d := start(t, api, "b")
	d.pool("a", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.0/24"}, NodeSelector: selects("disk", "ssd"), Quota: v1alpha1.Quota{PerNamespace: 1}})
	d.pool("b", one("10.9.0.0/24"))
	d.pools.reserve(&v1alpha1.IPReservation{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Spec: v1alpha1.IPReservationSpec{Ranges: []string{"10.0.0.0/8"}}})
	if got := d.get(labelled(1, nil, nil, map[string]string{})); got != want {
		t.Errorf("%s, before %s", got, want)
	}
	d.pools.forget("a")
	d.refused(labelled(1, nil, nil, map[string]string{}), "NotFound", strings.Fields(strings.TrimSuffix(want, "/32"))[1], "restore the pool")
	if held := d.store.Held(HolderOf(drivertest.Request(1).Owner)); len(held) != 1 {
		t.Errorf("the pod has %v", held)
	}
}

// While the outcome of a take from one pool is unknown, no other pool is tried: the pod
// could get two addresses.
func TestNoFallbackOnDoubt(t *testing.T) {
	api := blocktest.NewAPI()
	d := start(t, api, "a", "b")
	d.pool("a", one("10.0.0.0/24"))
	d.pool("b", one("10.1.0.0/24"))
	d.loseReply(api)
	if got := d.get(drivertest.Request(1)); !strings.HasPrefix(got, "a ") {
		t.Errorf("got %s", got)
	}
	if blocks := api.List(); len(blocks) != 1 || blocks[0].Spec.Used != 1 {
		t.Errorf("%d blocks", len(blocks))
	}
}

// The reply to a take from the second pool was lost, and the first pool has room again. The
// outcome is read before the first pool is tried. Otherwise the pod would have an address
// of each (make sim SEED=5014).
func TestDoubtIsSettledBeforeAnyPoolIsAsked(t *testing.T) {
	for _, each := range []bool{false, true} {
		api := blocktest.NewAPI()
		d := start(t, api, "a", "b")
		d.pool("a", one("10.0.0.7"))
		d.get(drivertest.Request(9))
		d.pool("b", one("10.0.0.64/27"))
		d.loseReply(api)
		soon, end := context.WithTimeout(t.Context(), time.Minute)
		api.Hook(func(blocktest.Call) blocktest.Fault {
			time.AfterFunc(50*time.Millisecond, end) // counted from the call, however late it comes
			return blocktest.Fault{After: blocktest.ErrLost}
		})
		if _, err := d.Ensure(soon, drivertest.Request(1)); driver.Result(err) != "Unavailable" {
			t.Errorf("while the API server is away: %s: %v", driver.Result(err), err)
		}
		end()
		api.Hook(func(blocktest.Call) blocktest.Fault { return blocktest.Fault{} })
		d.pool("a", one("10.0.0.0/28"))
		r := drivertest.Request(1)
		if each {
			asks(r).Pools, asks(r).EachPool = []string{"b"}, true
		}
		got := d.get(r)
		if has := d.addresses(); !strings.HasPrefix(got, "b ") || len(has) != 1 {
			t.Errorf("got %s, and the pod has %v", got, has)
		}
	}
}

// A quota holds if all pods of a namespace come at once, and the error has the limit.
func TestQuota(t *testing.T) {
	const limit, pods = 5, 40
	d := start(t, blocktest.NewAPI(), "a")
	d.pool("a", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.0/24", "fd00::/64"}, Quota: v1alpha1.Quota{PerNamespace: limit}})
	request := func(namespace string, n int) *driver.Request {
		r := drivertest.Request(n)
		r.Namespace = namespace
		return r
	}
	var (
		wg  sync.WaitGroup
		mu  sync.Mutex
		got []int
	)
	for n := range pods {
		wg.Go(func() {
			_, err := d.Ensure(t.Context(), request("team-a", n))
			mu.Lock()
			defer mu.Unlock()
			switch driver.Result(err) {
			case "OK":
				got = append(got, n)
			case "Exhausted":
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(got) != limit {
		t.Fatalf("%d pods have addresses, want %d", len(got), limit)
	}
	d.refused(request("team-a", pods), "Exhausted", "pool a", "namespace team-a has 5 addresses", "spec.quota.perNamespace allows 5")
	d.get(request("team-b", pods+1))
	d.get(request("team-a", got[0])) // it has them already
	released := request("team-a", got[0])
	a, err := d.Ensure(t.Context(), released)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Release(t.Context(), driver.Ref{Owner: released.Owner, Interface: a.Interface}); err != nil {
		t.Fatal(err)
	}
	d.get(request("team-a", pods))
	d.refused(request("team-a", pods+2), "Exhausted", "namespace team-a")
	if n := len(d.quotas.m); n != 0 {
		t.Errorf("%d gates are left behind", n)
	}
}

// enter stops waiting when its context ends.
func TestQuotaEndsWithContext(t *testing.T) {
	q := quotas{m: map[tenant]*gate{}}
	none := func() int { return 0 }
	leave, err := q.enter(t.Context(), tenant{"a", "team"}, 1, none)
	if err != nil {
		t.Fatal(err)
	}
	defer leave()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := q.enter(ctx, tenant{"a", "team"}, 1, none); driver.Result(err) != "Unavailable" {
		t.Errorf("%s: %v", driver.Result(err), err)
	}
}

// Overlapping pools of one domain never hand out an address twice, even with two leaders
// at once. The same range in two domains is two sets of addresses. whereabouts needs a
// second object per address for this (whereabouts#409, #712).
func TestOverlapAndDomains(t *testing.T) {
	api := blocktest.NewAPI()
	var leaders []*inMemory
	for range 2 {
		d := start(t, api)
		d.pool("low", one("10.0.0.1-10.0.0.60"))
		d.pool("high", one("10.0.0.40-10.0.0.100"))
		d.pool("elsewhere", v1alpha1.IPPoolSpec{Domain: "elsewhere", Ranges: []string{"10.0.0.1-10.0.0.100"}})
		leaders = append(leaders, d)
	}
	var (
		mu    sync.Mutex
		taken = map[string]string{}
		wg    sync.WaitGroup
	)
	for n := range 200 {
		wg.Go(func() {
			r := drivertest.Request(n)
			asks(r).Pools = []string{"low", "high"}
			if n%2 == 0 {
				asks(r).Pools = []string{"high", "low"}
			}
			if n >= 100 {
				asks(r).Pools = []string{"elsewhere"}
			}
			a, err := leaders[n/2%2].Ensure(t.Context(), r)
			if err != nil {
				t.Errorf("pod %s: %v", r.PodName, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			key := a.Interface.Domain + " " + strings.Join(a.Interface.Addresses, ",")
			if other, ok := taken[key]; ok {
				t.Errorf("%s is given to %s and %s", key, other, r.PodName)
			}
			taken[key] = r.PodName
		})
	}
	wg.Wait()
	if len(taken) != 200 {
		t.Errorf("%d addresses are taken, want all 200", len(taken))
	}
	for _, d := range leaders {
		for k := range 2 {
			r := drivertest.Request(1000)
			asks(r).Pools = []string{"low", "high", fmt.Sprint("none-", k)}
			d.refused(r, "Exhausted")
		}
	}
}

// A reservation applies to existing blocks at once, and only in its domain. An invalid
// range leaves the other ranges in force.
func TestReservationsInForce(t *testing.T) {
	d := start(t, blocktest.NewAPI(), "a")
	d.pool("a", one("10.0.0.1-10.0.0.4"))
	d.pool("b", v1alpha1.IPPoolSpec{Domain: "other", Ranges: []string{"10.0.0.2"}})
	d.get(drivertest.Request(1))
	d.pools.reserve(&v1alpha1.IPReservation{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Spec: v1alpha1.IPReservationSpec{Ranges: []string{"10.0.0.2-10.0.0.3", "none"}}})
	if got := d.get(drivertest.Request(2)); got != "a 10.0.0.4/32" {
		t.Errorf("got %s", got)
	}
	d.refused(drivertest.Request(3), "Exhausted", "usable=4 free=0 allocated=2 cooling=0 held=0 reserved=2")
	other := drivertest.Request(4)
	asks(other).Pools = []string{"b"}
	d.get(other)
	d.pools.unreserve("r")
	if got := d.get(drivertest.Request(3)); got != "a 10.0.0.2/32" {
		t.Errorf("got %s", got)
	}
}
