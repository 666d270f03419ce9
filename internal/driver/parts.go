package driver

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/pod"
)

// Parts is everything that a driver provides. Only Driver is required: any other part, and
// any field of a part, is left out if the driver has no use for it. The functions are safe
// for concurrent use. All but Setup, Wake, ReclaimAfter and Changes answer from memory,
// at once.
type Parts struct {
	// Driver obtains interfaces and takes them back.
	Driver     Driver
	Networks   Networks
	Run        Run
	Activation Activation
	Evidence   Evidence
	Collect    Collect
}

// Networks is how networks name a driver, and what the driver reads of them. Each type
// and each annotation belongs to one driver.
type Networks struct {
	// Types are the types by which a NetworkAttachmentDefinition names this driver: values
	// of ipam.type.
	Types []string

	// PluginTypes are the types of the plugin of a network that names this driver, where
	// Fairlead attaches the pods. The driver alone reads the configuration of such a network
	// (pod.Settings).
	PluginTypes []string

	// Annotations are those by which a network without a configuration names this driver.
	Annotations []string

	// Read returns the requests of a pod, mainly in its annotations, and of a network to
	// this driver about one interface. Ensure gets the result in Request.Asks. The
	// controller calls Read for all interfaces of a pod before it obtains any. Errors:
	// fault.ErrInvalid.
	Read func(p *corev1.Pod, i *pod.Interface) (asks any, err error)

	// Origin returns, for people, the source of an interface on an unknown network: "pool
	// web".
	Origin func(i v1alpha1.Interface) string
}

// Run is what a driver does beside the calls of the controller.
type Run struct {
	// Setup registers the reconcilers, gauges and loops that the driver runs beside the
	// controller. Main calls it once, before the manager starts.
	Setup func(ctx context.Context, mgr manager.Manager, term Term) error

	// Synced reports whether the driver knows all its taken interfaces; once true it stays
	// true. Until then the controller neither obtains nor releases interfaces of the driver.
	// When it becomes true, the driver calls Waiting and Leaving of Wake. Nil: always true.
	Synced func() bool

	// Ready reports whether the driver may hand out interfaces: a driver may have to compare
	// its state with the PodAttachments first. When it becomes true, the driver calls
	// Wake.Waiting. Nil: always true.
	Ready func() bool

	// Wake registers the functions that the driver calls, until ctx ends, when something
	// changes that pods wait for. It returns at once, and is called on the leader and on
	// standbys.
	Wake func(ctx context.Context, w Wake) error

	// Awaited reports whether pods of the same namespace may wait for an interface whose
	// PodAttachment is gone. Nil: always false.
	Awaited func(gone v1alpha1.Interface) bool
}

// Activation is for a driver whose interfaces have WaitForActive: its network needs time.
type Activation struct {
	// Active reports whether a recorded interface with WaitForActive carries traffic, as far
	// as the driver knows. why is the reason if it does not, and may be empty.
	Active func(ref Ref) (active bool, why string)

	// Changes calls changed with the owner of each interface for which the result of
	// Active has changed, until ctx ends. It runs in each term of a leader, and begins with
	// the owners of all interfaces that became active between the terms.
	Changes func(ctx context.Context, changed func(o Owner))
}

// Evidence is what a driver knows about whether an interface may be released.
type Evidence struct {
	// GivenSince reports whether an owner got, at or after a moment, an address that it
	// still has. The moment is known to the second; i is the interface in the owner's
	// record. Nil: always false.
	GivenSince func(o Owner, i v1alpha1.Interface, moment time.Time) bool

	// ReclaimAfter returns the operator's policy: how long this driver's interfaces of one
	// PodAttachment wait for an unreachable node; 0 is for ever. from is a cache or the API
	// server. Nil: for ever.
	ReclaimAfter func(ctx context.Context, from client.Reader, interfaces []v1alpha1.Interface) (time.Duration, error)
}

// Collect is how garbage collection finds and releases what no PodAttachment names.
type Collect struct {
	// Held returns the interfaces of an owner, in the form of Driver.List. Nil: only garbage
	// collection finds the interfaces of a deleted pod that never had all of its interfaces.
	Held func(o Owner) []Ref

	// Surplus returns the part of a held interface that is not in the owner's PodAttachment
	// and can be released while the rest stays; ok is false if there is none. named are the
	// interfaces of the PodAttachment. Nil: an interface is released as a whole, see SurplusOf.
	Surplus func(held v1alpha1.Interface, named []v1alpha1.Interface) (part v1alpha1.Interface, ok bool)

	// SecondLook is true if garbage collection acts on an interface without a PodAttachment
	// only when a second pass finds it: people can see it until then.
	SecondLook bool
}

// SurplusOf returns Surplus of a held interface. Without Surplus it is the whole interface if named
// has none of its name.
func (c Collect) SurplusOf(held v1alpha1.Interface, named []v1alpha1.Interface) (part v1alpha1.Interface, ok bool) {
	if c.Surplus != nil {
		return c.Surplus(held, named)
	}
	return held, !slices.ContainsFunc(named, func(i v1alpha1.Interface) bool { return i.Name == held.Name })
}

// Wake has the functions that reconcile waiting pods.
type Wake struct {
	// Waiting enqueues the pods that did not get their network yet.
	Waiting func()
	// Pods enqueues these pods.
	Pods func(pods ...types.NamespacedName)
	// Leaving enqueues the pods whose release waits for a node.
	Leaving func()
}

// Term runs work only while this process leads.
type Term interface {
	// Reconciler returns a reconciler that calls r while this process leads. Otherwise its
	// requests wait.
	Reconciler(r reconcile.Reconciler) reconcile.Reconciler
	// EachTerm returns a function that runs f once in each term, with a context that ends
	// with the term.
	EachTerm(f func(context.Context) error) func(context.Context) error
}

// Knows reports whether the driver is synced and ready.
func (p Parts) Knows() bool {
	return p.IsSynced() && (p.Run.Ready == nil || p.Run.Ready())
}

// IsSynced returns Run.Synced(), and true if it is nil.
func (p Parts) IsSynced() bool { return p.Run.Synced == nil || p.Run.Synced() }

// Table maps the names of drivers to their parts.
type Table map[string]Parts

// Names returns the names of the drivers, sorted, for people: "native, neutron".
func (t Table) Names() string { return strings.Join(slices.Sorted(maps.Keys(t)), ", ") }

// Named returns the driver of that name. Errors: fault.ErrInvalid.
func (t Table) Named(name string) (Parts, error) {
	d, ok := t[name]
	if !ok {
		return Parts{}, fmt.Errorf("%w: no driver is named %q: must be one of %s", fault.ErrInvalid, name, t.Names())
	}
	return d, nil
}

// Release has the driver of an interface take it back. Errors: fault.ErrInvalid if there is no
// such driver, and those of Driver.Release.
func (t Table) Release(ctx context.Context, ref Ref) error {
	d, err := t.Named(ref.Interface.Driver)
	if err != nil {
		return err
	}
	return d.Driver.Release(ctx, ref)
}

// ByAddress is Collect.Surplus of a driver whose addresses can be released one by one. It
// returns held with only the addresses that no interface of the same name and domain in
// named has. ok is false if there is none, or if held has no domain.
func ByAddress(held v1alpha1.Interface, named []v1alpha1.Interface) (part v1alpha1.Interface, ok bool) {
	if held.Domain == "" {
		return v1alpha1.Interface{}, false
	}
	part = held
	part.Addresses = slices.DeleteFunc(slices.Clone(held.Addresses), func(cidr string) bool {
		p, err := netip.ParsePrefix(cidr)
		return err != nil || names(named, held, p.Addr())
	})
	return part, len(part.Addresses) > 0
}

// names reports whether named has an interface of held's name and domain with address a.
func names(named []v1alpha1.Interface, held v1alpha1.Interface, a netip.Addr) bool {
	return slices.ContainsFunc(named, func(i v1alpha1.Interface) bool {
		return i.Name == held.Name && i.Domain == held.Domain && slices.ContainsFunc(i.Addresses, func(cidr string) bool {
			p, err := netip.ParsePrefix(cidr)
			return err == nil && p.Addr() == a
		})
	})
}

// Metrics measures the duration of calls of drivers, by result.
type Metrics struct {
	duration *prometheus.HistogramVec
}

// NewMetrics registers the drivers' metrics.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "fairlead",
		Subsystem: "driver",
		Name:      "call_duration_seconds",
		Help:      "Duration of a call of a driver. By driver: the name of the driver. By method: ensure, release, list, confirm. By result: OK, Invalid, Exhausted, NotFound, Conflict, Unavailable, Unknown (another error).",
		Buckets:   []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
	}, []string{"driver", "method", "result"})}
	return m, r.Register(m.duration)
}

// Wrap returns a driver that calls d and measures its calls under a name.
func (m *Metrics) Wrap(name string, d Driver) Driver {
	return &measured{name: name, next: d, metrics: m}
}

type measured struct {
	name    string
	next    Driver
	metrics *Metrics
}

func (m *measured) observe(method string, start time.Time, err error) {
	m.metrics.duration.WithLabelValues(m.name, method, Result(err)).Observe(time.Since(start).Seconds())
}

func (m *measured) Ensure(ctx context.Context, r *Request) (a *Attachment, err error) {
	defer func(start time.Time) { m.observe("ensure", start, err) }(time.Now())
	return m.next.Ensure(ctx, r)
}

func (m *measured) Release(ctx context.Context, ref Ref) (err error) {
	defer func(start time.Time) { m.observe("release", start, err) }(time.Now())
	return m.next.Release(ctx, ref)
}

func (m *measured) List(ctx context.Context) iter.Seq2[Ref, error] {
	return func(yield func(Ref, error) bool) {
		var failed error
		defer func(start time.Time) { m.observe("list", start, failed) }(time.Now())
		for o, err := range m.next.List(ctx) {
			failed = err
			if !yield(o, err) {
				return
			}
		}
	}
}

func (m *measured) Confirm(ctx context.Context, ref Ref) (i v1alpha1.Interface, err error) {
	defer func(start time.Time) { m.observe("confirm", start, err) }(time.Now())
	return m.next.Confirm(ctx, ref)
}

// Result names an error of a driver for a metric label or a condition reason:
// one of OK, Invalid, Exhausted, NotFound, Conflict, Unavailable and Unknown.
func Result(err error) string {
	for _, r := range results {
		if errors.Is(err, r.err) {
			return r.name
		}
	}
	return "Unknown"
}

// results has the name of each error of the contract. Nil comes first.
var results = []struct {
	err  error
	name string
}{
	{nil, "OK"},
	{fault.ErrInvalid, "Invalid"},
	{fault.ErrExhausted, "Exhausted"},
	{fault.ErrNotFound, "NotFound"},
	{fault.ErrConflict, "Conflict"},
	{fault.ErrUnavailable, "Unavailable"},
}
