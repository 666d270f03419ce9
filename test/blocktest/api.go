// Package blocktest is an in-memory API server for IPBlocks, with faults. The store's
// tests run against it, and so do other tests that need a store.
package blocktest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// ErrLost is the error of a call whose reply was lost, if a Fault names none.
var ErrLost = errors.New("connection lost")

// Call is one call, as the argument of a hook.
type Call struct {
	// Verb is create, update, get or delete.
	Verb string
	// Name is the name of the block.
	Name string
	// N is the number of the call, from 1 on.
	N int
}

// Fault is the failure of a call. The zero Fault is none.
type Fault struct {
	// Delay is the time before the call takes effect. The end of the call's context
	// ends it.
	Delay time.Duration
	// Before is an error that the call returns without effect.
	Before error
	// After is an error that the call returns after it took effect: the reply is lost.
	After error
	// AfterDelay is the time between effect and reply.
	AfterDelay time.Duration
}

// Sink gets the events of a feed: a block.Store.
type Sink interface {
	Observe(b *v1alpha1.IPBlock)
	Forget(b *v1alpha1.IPBlock)
}

// API keeps IPBlocks as an API server does. Resource versions grow over all objects,
// writes are compare-and-swap, objects are copied in and out, and the limits of the
// schema hold.
type API struct {
	mu      sync.Mutex
	version int
	calls   int
	byVerb  map[string]int
	objects map[string]*v1alpha1.IPBlock
	log     []event
	added   chan struct{}
	hook    func(Call) Fault
}

type event struct {
	obj     *v1alpha1.IPBlock
	deleted bool
}

// NewAPI returns an API without blocks.
func NewAPI() *API {
	return &API{
		byVerb:  map[string]int{},
		objects: map[string]*v1alpha1.IPBlock{},
		added:   make(chan struct{}),
	}
}

// Hook sets the function that returns the fault of each call from now on. It is called
// without locks.
func (a *API) Hook(f func(Call) Fault) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.hook = f
}

// Calls returns how often a verb was called.
func (a *API) Calls(verb string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.byVerb[verb]
}

// Writes returns the number of creates, updates and deletes.
func (a *API) Writes() int { return a.Calls("create") + a.Calls("update") + a.Calls("delete") }

// List returns all blocks by name.
func (a *API) List() []*v1alpha1.IPBlock {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []*v1alpha1.IPBlock
	for _, name := range slices.Sorted(maps.Keys(a.objects)) {
		out = append(out, a.objects[name].DeepCopy())
	}
	return out
}

// Put writes a block as another writer, without hooks and checks.
func (a *API) Put(b *v1alpha1.IPBlock) {
	a.mu.Lock()
	defer a.mu.Unlock()
	old := a.objects[b.Name]
	a.store(b.DeepCopy(), old)
}

// Remove deletes a block as another writer.
func (a *API) Remove(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if old := a.objects[name]; old != nil {
		a.remove(old)
	}
}

// Create implements block.Client.
func (a *API) Create(ctx context.Context, b *v1alpha1.IPBlock) (*v1alpha1.IPBlock, error) {
	return a.do(ctx, "create", b.Name, func() (*v1alpha1.IPBlock, error) {
		if a.objects[b.Name] != nil {
			return nil, apierrors.NewAlreadyExists(resource(), b.Name)
		}
		if err := check(b, nil); err != nil {
			return nil, err
		}
		return a.store(b.DeepCopy(), nil), nil
	})
}

// Update implements block.Client.
func (a *API) Update(ctx context.Context, b *v1alpha1.IPBlock) (*v1alpha1.IPBlock, error) {
	return a.do(ctx, "update", b.Name, func() (*v1alpha1.IPBlock, error) {
		old := a.objects[b.Name]
		switch {
		case old == nil:
			return nil, apierrors.NewNotFound(resource(), b.Name)
		case b.ResourceVersion != old.ResourceVersion || b.UID != old.UID:
			return nil, apierrors.NewConflict(resource(), b.Name, errors.New("the object has been modified"))
		}
		if err := check(b, old); err != nil {
			return nil, err
		}
		return a.store(b.DeepCopy(), old), nil
	})
}

// Get implements block.Client.
func (a *API) Get(ctx context.Context, name string) (*v1alpha1.IPBlock, error) {
	return a.do(ctx, "get", name, func() (*v1alpha1.IPBlock, error) {
		if a.objects[name] == nil {
			return nil, apierrors.NewNotFound(resource(), name)
		}
		return a.objects[name].DeepCopy(), nil
	})
}

// Delete implements block.Client.
func (a *API) Delete(ctx context.Context, b *v1alpha1.IPBlock) error {
	_, err := a.do(ctx, "delete", b.Name, func() (*v1alpha1.IPBlock, error) {
		old := a.objects[b.Name]
		switch {
		case old == nil:
			return nil, apierrors.NewNotFound(resource(), b.Name)
		case b.ResourceVersion != old.ResourceVersion || b.UID != old.UID:
			return nil, apierrors.NewConflict(resource(), b.Name, errors.New("the preconditions do not hold"))
		}
		a.remove(old)
		return nil, nil
	})
	return err
}

func (a *API) do(ctx context.Context, verb, name string, effect func() (*v1alpha1.IPBlock, error)) (*v1alpha1.IPBlock, error) {
	a.mu.Lock()
	a.calls++
	a.byVerb[verb]++
	c, hook := Call{Verb: verb, Name: name, N: a.calls}, a.hook
	a.mu.Unlock()
	var f Fault
	if hook != nil {
		f = hook(c)
	}
	if err := wait(ctx, f.Delay); err != nil {
		return nil, err
	}
	if f.Before != nil {
		return nil, f.Before
	}
	a.mu.Lock()
	obj, err := effect()
	a.mu.Unlock()
	if lost := wait(ctx, f.AfterDelay); lost != nil {
		return nil, lost
	}
	if f.After != nil {
		return nil, f.After
	}
	return obj, err
}

func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// store stores b and returns a copy.
func (a *API) store(b, old *v1alpha1.IPBlock) *v1alpha1.IPBlock {
	a.version++
	if old == nil {
		b.UID = types.UID("uid-" + strconv.Itoa(a.version))
	} else {
		b.UID = old.UID
	}
	b.ResourceVersion = strconv.Itoa(a.version)
	a.objects[b.Name] = b
	a.append(event{obj: b})
	return b.DeepCopy()
}

func (a *API) remove(old *v1alpha1.IPBlock) {
	a.version++
	last := old.DeepCopy()
	last.ResourceVersion = strconv.Itoa(a.version)
	delete(a.objects, old.Name)
	a.append(event{obj: last, deleted: true})
}

func (a *API) append(e event) {
	a.log = append(a.log, e)
	close(a.added)
	a.added = make(chan struct{})
}

// check checks those rules of the schema that a store could violate.
func check(b, old *v1alpha1.IPBlock) error {
	problem := ""
	if len(b.Spec.Slots) > 64 {
		problem = fmt.Sprintf("spec.slots has %d items, at most 64", len(b.Spec.Slots))
	}
	for _, s := range b.Spec.Slots {
		if len(s) > 1024 {
			problem = "a slot is longer than 1024"
		}
	}
	if old != nil && (b.Spec.Domain != old.Spec.Domain || b.Spec.CIDR != old.Spec.CIDR || b.Spec.Node != old.Spec.Node) {
		problem = "domain, CIDR and node cannot be changed"
	}
	if problem == "" {
		return nil
	}
	return apierrors.NewInvalid(schema.GroupKind{Group: "fairlead.dev", Kind: "IPBlock"}, b.Name+": "+problem, nil)
}

func resource() schema.GroupResource {
	return schema.GroupResource{Group: "fairlead.dev", Resource: "ipblocks"}
}

// Feed delivers the events of the API to a sink, in order and as late as the test
// wants, as an informer does.
type Feed struct {
	api  *API
	sink Sink
	mu   sync.Mutex
	next int
}

// NewFeed returns a feed that starts with the first event.
func (a *API) NewFeed(sink Sink) *Feed { return &Feed{api: a, sink: sink} }

// Deliver delivers at most n events, all if n is negative, and returns how many it
// delivered.
func (f *Feed) Deliver(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.api.mu.Lock()
	events := f.api.log[f.next:]
	f.api.mu.Unlock()
	if n >= 0 && n < len(events) {
		events = events[:n]
	}
	for _, e := range events {
		if e.deleted {
			f.sink.Forget(e.obj.DeepCopy())
		} else {
			f.sink.Observe(e.obj.DeepCopy())
		}
	}
	f.next += len(events)
	return len(events)
}

// Run delivers events as they happen until ctx ends.
func (f *Feed) Run(ctx context.Context) {
	for {
		f.api.mu.Lock()
		added := f.api.added
		f.api.mu.Unlock()
		f.Deliver(-1)
		select {
		case <-added:
		case <-ctx.Done():
			return
		}
	}
}
