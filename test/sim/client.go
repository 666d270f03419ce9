package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/pod"
)

// outcome is the result of a call to the API.
type outcome string

const (
	// served: the call has its effect and is answered.
	served outcome = "served"
	// lostBefore: a timeout, without an effect.
	lostBefore outcome = "lost before"
	// lostAfter: the call has its effect, and the answer is lost.
	lostAfter outcome = "lost after"
	// late: a timeout now, and the effect later.
	late outcome = "late"
	// throttled: the API server refused it (429), for certain.
	throttled outcome = "throttled"
	// failed: the API server answers 500.
	failed outcome = "failed"
	// forbidden: the API server refuses the call (403), for certain: always for a
	// poisoned pod, and for a moment after its start, until it has read its roles.
	forbidden outcome = "forbidden"
)

var errTimeout = fmt.Errorf("request timed out: %w", context.DeadlineExceeded)

// call is a request that waits for the scheduler to decide about it.
type call struct {
	by   *leader
	verb string
	key  key
	// task is the object that the caller reconciles; zero for the store's calls.
	task key
	// ofTerm is false for the store's calls, which outlive a term.
	ofTerm bool
	// effect is the effect on the API. It stores the answer in a variable of the caller.
	effect func() error
	reply  chan error
	// sent is the step at which the call arrived. read are the steps at which the
	// collector's leader has read blocks since the pass began; nil except for creates of
	// records.
	sent int
	read map[string]int
	// looks are the facts that the caller's leader knew when it began the running
	// reconciles; reserved are the reservations that it knows now.
	looks    map[key]look
	reserved map[string]*ipam.Reservation
}

// taskKey is the context key of the object that is reconciled; termKey marks contexts of
// a term.
type (
	taskKey struct{}
	termKey struct{}
)

func (c *call) String() string { return fmt.Sprintf("leader %d: %s %s", c.by.id, c.verb, c.key) }

func compareCalls(a, b *call) int {
	return cmp.Or(cmp.Compare(a.by.id, b.by.id), cmp.Compare(a.key.kind, b.key.kind), cmp.Compare(a.key.Name, b.key.Name), cmp.Compare(a.verb, b.verb),
		cmp.Compare(a.task.kind, b.task.kind), cmp.Compare(a.task.Name, b.task.Name))
}

func (c *call) write() bool { return c.verb != "get" }

// conn is a leader's client of the API: reads come from the leader's cache, or live;
// writes are parked until the scheduler lets them through.
type conn struct {
	// Methods that are not simulated are nil, and panic.
	client.Client
	l *leader
	// live reads the API instead of the cache.
	live bool
}

// do parks a call. The calls of a crashed process are cancelled.
func (c conn) do(ctx context.Context, verb string, k key, effect func() error) error {
	if c.l.dead.Load() || ctx.Err() != nil && ctx.Value(termKey{}) != nil {
		return context.Canceled
	}
	p := &call{by: c.l, verb: verb, key: k, effect: effect, reply: make(chan error, 1)}
	p.task, _ = ctx.Value(taskKey{}).(key)
	p.ofTerm, _ = ctx.Value(termKey{}).(bool)
	c.l.w.park(p)
	return <-p.reply
}

// assign copies the API's answer into the caller's object.
func assign(dst, src client.Object) {
	reflect.ValueOf(dst).Elem().Set(reflect.ValueOf(src.DeepCopyObject()).Elem())
}

func clearObject(o client.Object) { reflect.ValueOf(o).Elem().SetZero() }

func (c conn) Get(ctx context.Context, k client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	kk := key{kindOf(o), k}
	if machine, ok := o.(*metav1.PartialObjectMetadata); ok {
		kk.kind = machine.Kind
		return c.do(ctx, "get", kk, func() error { return c.l.w.readMachine(machine, k) })
	}
	if !c.live {
		return c.cached(kk, o)
	}
	if kk.kind == kindBlock && c.l.w.cfg.Break == StaleReads {
		return c.do(ctx, "get", kk, func() error { return c.stale(kk, o) })
	}
	var got client.Object
	err := c.do(ctx, "get", kk, func() (err error) {
		got, err = c.l.w.api.get(kk)
		if kk.kind == kindBlock {
			c.l.read[k.Name] = c.l.w.stats.Steps
		}
		return err
	})
	if err == nil {
		assign(o, got)
	}
	return err
}

// cached is a read from the leader's cache.
func (c conn) cached(k key, o client.Object) error {
	got := c.l.cache.get(k)
	if got == nil && k.kind == kindNode && c.l.w.cfg.Break == AnyNode {
		got = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: k.Name}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady}}}}
	}
	if got == nil {
		return apierrors.NewNotFound(resource(k), k.Name)
	}
	assign(o, got)
	return nil
}

// stale answers with old content under the newest version (StaleReads).
func (c conn) stale(k key, o client.Object) error {
	if err := c.cached(k, o); err != nil {
		return err
	}
	now, err := c.l.w.api.get(k)
	if err == nil {
		o.SetResourceVersion(now.GetResourceVersion())
		o.SetUID(now.GetUID())
	}
	return err
}

// List reads the cache, also for a live client, because the product lists nothing live.
func (c conn) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	o := client.ListOptions{}
	o.ApplyOptions(opts)
	want := func(obj client.Object) bool {
		if o.FieldSelector != nil {
			for _, r := range o.FieldSelector.Requirements() {
				if fieldOf(obj) != r.Value {
					return false
				}
			}
		}
		return (o.Namespace == "" || obj.GetNamespace() == o.Namespace) &&
			(o.LabelSelector == nil || o.LabelSelector.Matches(labels.Set(obj.GetLabels())))
	}
	var items []runtime.Object
	for _, obj := range c.l.cache.list(kindOf(list), want) {
		items = append(items, obj.DeepCopyObject())
	}
	return meta.SetList(list, items)
}

// fieldOf returns the value of a cache index; all indices are by node.
func fieldOf(o client.Object) string {
	switch o := o.(type) {
	case *v1alpha1.PodAttachment:
		return o.Spec.NodeName
	case *corev1.Pod:
		return o.Spec.NodeName
	case *v1alpha1.IPBlock:
		return o.Spec.Node
	}
	return ""
}

func (c conn) Create(ctx context.Context, o client.Object, _ ...client.CreateOption) error {
	in, out := copyOf(o), client.Object(nil)
	if record, ok := in.(*v1alpha1.PodAttachment); ok && c.l.w.cfg.Break == NodesByAge {
		record.Spec.NodeUID = ""
	}
	err := c.do(ctx, "create", keyOf(o), func() (err error) {
		out, err = c.l.w.api.create(in)
		return err
	})
	if err == nil {
		assign(o, out)
	}
	if record, ok := o.(*v1alpha1.PodAttachment); ok && c.l.w.cfg.Break == LostReplyIsFailure && errors.Is(err, context.DeadlineExceeded) {
		for _, i := range record.Spec.Interfaces {
			of := pod.HolderOf(record)
			h := ipam.Holder{PodUID: string(of.UID), Interface: i.Name, Namespace: of.Namespace, Pod: of.Name}
			err = errors.Join(err, c.l.store.Free(ctx, h, i.Domain, nil))
		}
	}
	return err
}

func (c conn) Update(ctx context.Context, o client.Object, _ ...client.UpdateOption) error {
	in, out := copyOf(o), client.Object(nil)
	err := c.do(ctx, "update", keyOf(o), func() (err error) {
		out, err = c.l.w.api.update(in)
		return err
	})
	if err == nil {
		assign(o, out)
	}
	return err
}

func (c conn) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	d := client.DeleteOptions{}
	d.ApplyOptions(opts)
	k := keyOf(o)
	return c.do(ctx, "delete", k, func() error { return c.l.w.api.remove(k, d.Preconditions) })
}

func (c conn) Patch(ctx context.Context, o client.Object, p client.Patch, _ ...client.PatchOption) error {
	return c.patch(ctx, o, p, false)
}

func (c conn) patch(ctx context.Context, o client.Object, p client.Patch, status bool) error {
	data, err := p.Data(o)
	if err != nil {
		return err
	}
	k, out := keyOf(o), client.Object(nil)
	err = c.do(ctx, "patch", k, func() (err error) {
		out, err = c.l.w.api.patch(k, data, status)
		return err
	})
	if err == nil {
		assign(o, out)
	}
	return err
}

func (c conn) Status() client.SubResourceWriter { return statusConn{c: c} }

type statusConn struct {
	client.SubResourceWriter
	c conn
}

func (s statusConn) Patch(ctx context.Context, o client.Object, p client.Patch, _ ...client.SubResourcePatchOption) error {
	return s.c.patch(ctx, o, p, true)
}
