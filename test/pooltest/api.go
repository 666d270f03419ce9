// Package pooltest has an API of PortPools in memory, for tests.
package pooltest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// API implements pool.API. It is safe for concurrent use.
type API struct {
	mu      sync.Mutex
	version int
	objects map[string]*v1alpha1.PortPool
	writes  int
	fault   func(verb string, o *v1alpha1.PortPool) Fault
	feeds   []Feed
}

// Feed takes the events of a watch.
type Feed interface {
	Learn(o *v1alpha1.PortPool)
	Gone(o *v1alpha1.PortPool)
}

// Fault is the failure of a write.
type Fault int

// The faults.
const (
	None Fault = iota
	// LoseRequest does nothing.
	LoseRequest
	// LoseReply does the write and returns an error.
	LoseReply
)

var resource = schema.GroupResource{Group: "fairlead.dev", Resource: "portpools"}

// errLost is the error of a write whose reply or request was lost.
var errLost = errors.New("connection reset")

// New returns an API without PortPools.
func New() *API { return &API{objects: map[string]*v1alpha1.PortPool{}} }

// Inject has a function choose the fault of each write. It is called without a lock.
func (a *API) Inject(f func(verb string, o *v1alpha1.PortPool) Fault) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fault = f
}

// Feed tells f all PortPools, and from now on each change at once.
func (a *API) Feed(f Feed) {
	for _, o := range a.List() {
		f.Learn(o)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.feeds = append(a.feeds, f)
}

// Unfeed ends all feeds.
func (a *API) Unfeed() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.feeds = nil
}

// List returns all PortPools, by name.
func (a *API) List() []*v1alpha1.PortPool {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []*v1alpha1.PortPool
	for _, name := range slices.Sorted(maps.Keys(a.objects)) {
		out = append(out, a.objects[name].DeepCopy())
	}
	return out
}

// Writes returns the number of successful writes.
func (a *API) Writes() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.writes
}

func (a *API) write(verb string, o *v1alpha1.PortPool, do func() (*v1alpha1.PortPool, error)) (*v1alpha1.PortPool, error) {
	a.mu.Lock()
	choose := a.fault
	a.mu.Unlock()
	fault := None
	if choose != nil {
		fault = choose(verb, o)
	}
	if fault == LoseRequest {
		return nil, errLost
	}
	a.mu.Lock()
	out, err := do()
	feeds := slices.Clone(a.feeds)
	if err == nil {
		a.writes++
	}
	a.mu.Unlock()
	if err != nil {
		return nil, err
	}
	for _, f := range feeds {
		if verb == "delete" {
			f.Gone(out.DeepCopy())
		} else {
			f.Learn(out.DeepCopy())
		}
	}
	if fault == LoseReply {
		return nil, errLost
	}
	return out.DeepCopy(), nil
}

func (a *API) store(o *v1alpha1.PortPool) *v1alpha1.PortPool {
	a.version++
	o = o.DeepCopy()
	o.ResourceVersion = strconv.Itoa(a.version)
	a.objects[o.Name] = o
	return o
}

// Create implements pool.API.
func (a *API) Create(_ context.Context, o *v1alpha1.PortPool) (*v1alpha1.PortPool, error) {
	return a.write("create", o, func() (*v1alpha1.PortPool, error) {
		if a.objects[o.Name] != nil {
			return nil, apierrors.NewAlreadyExists(resource, o.Name)
		}
		o = o.DeepCopy()
		o.UID = types.UID("uid-" + strconv.Itoa(a.version+1))
		return a.store(o), nil
	})
}

// Update implements pool.API.
func (a *API) Update(_ context.Context, o *v1alpha1.PortPool) (*v1alpha1.PortPool, error) {
	return a.write("update", o, func() (*v1alpha1.PortPool, error) {
		switch has := a.objects[o.Name]; {
		case has == nil:
			return nil, apierrors.NewNotFound(resource, o.Name)
		case has.ResourceVersion != o.ResourceVersion:
			return nil, apierrors.NewConflict(resource, o.Name, errors.New("changed"))
		}
		return a.store(o), nil
	})
}

// Get implements pool.API.
func (a *API) Get(_ context.Context, name string) (*v1alpha1.PortPool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if o := a.objects[name]; o != nil {
		return o.DeepCopy(), nil
	}
	return nil, apierrors.NewNotFound(resource, name)
}

// Delete implements pool.API.
func (a *API) Delete(_ context.Context, o *v1alpha1.PortPool) error {
	_, err := a.write("delete", o, func() (*v1alpha1.PortPool, error) {
		switch has := a.objects[o.Name]; {
		case has == nil:
			return nil, apierrors.NewNotFound(resource, o.Name)
		case has.UID != o.UID || has.ResourceVersion != o.ResourceVersion:
			return nil, apierrors.NewConflict(resource, o.Name, errors.New("changed"))
		default:
			delete(a.objects, o.Name)
			return has, nil
		}
	})
	return err
}

// Edit changes a PortPool as a person does, with kubectl. A nil change deletes it.
func (a *API) Edit(name string, change func(o *v1alpha1.PortPool)) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		a.mu.Lock()
		o := a.objects[name]
		a.mu.Unlock()
		if o == nil {
			return apierrors.NewNotFound(resource, name)
		}
		if change == nil {
			return a.Delete(context.Background(), o)
		}
		o = o.DeepCopy()
		change(o)
		_, err := a.Update(context.Background(), o)
		return err
	})
}

// Cluster implements pool.Cluster for a cluster whose nodes all exist, and whose pods have no
// records.
type Cluster struct{}

// Recorded implements pool.Cluster.
func (Cluster) Recorded(context.Context, string) (map[string]v1alpha1.PortPoolPod, error) {
	return nil, nil
}

// NodeGone implements pool.Cluster.
func (Cluster) NodeGone(context.Context, string) (bool, error) { return false, nil }

// ReportMade implements pool.Cluster.
func (Cluster) ReportMade(context.Context, *v1alpha1.PortPool, error) {}

// ReportRecorded implements pool.Cluster.
func (Cluster) ReportRecorded(context.Context, *v1alpha1.PortPool, string, v1alpha1.PortPoolPod) {}
