package cloud

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/manager"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/run"
)

// Name of the driver in records and networks.
const Name = "cloud"

// Driver obtains interfaces from a cloud.
type Driver struct {
	url    string
	synced atomic.Bool

	mu     sync.Mutex
	active map[driver.Owner]bool
	wakes  []driver.Wake
}

// NewDriver returns the driver of the cloud at a URL.
func NewDriver(url string) *Driver { return &Driver{url: url, active: map[driver.Owner]bool{}} }

// Parts returns the driver's parts. The driver is synced once the cloud has answered.
func (d *Driver) Parts() driver.Parts {
	return driver.Parts{
		Driver:     d,
		Run:        driver.Run{Setup: d.setUp, Synced: d.synced.Load, Wake: d.wake},
		Activation: driver.Activation{Active: d.isActive, Changes: d.activations},
	}
}

func (d *Driver) setUp(_ context.Context, mgr manager.Manager, _ driver.Term) error {
	return mgr.Add(run.Everywhere(d.sync))
}

// retry is the pause between two calls to a cloud that does not answer.
const retry = 100 * time.Millisecond

func pause(ctx context.Context) {
	select {
	case <-time.After(retry):
	case <-ctx.Done():
	}
}

// sync waits until the cloud answers. The driver is then synced.
func (d *Driver) sync(ctx context.Context) error {
	for {
		if _, err := d.call(ctx, "list", request{}); err == nil || ctx.Err() != nil {
			break
		}
		pause(ctx)
	}
	d.synced.Store(true)
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range d.wakes {
		w.Waiting()
		w.Leaving()
	}
	return nil
}

func (d *Driver) wake(_ context.Context, w driver.Wake) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wakes = append(d.wakes, w)
	if d.synced.Load() {
		w.Waiting()
		w.Leaving()
	}
	return nil
}

func (d *Driver) isActive(ref driver.Ref) (bool, string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.active[identity(ref.Owner)], "the port is DOWN"
}

// activations is driver.Activation.Changes. One call waits for changes of all ports.
func (d *Driver) activations(ctx context.Context, changed func(driver.Owner)) {
	version := -1
	for ctx.Err() == nil {
		got, err := d.call(ctx, "changes", request{After: version})
		if err != nil {
			pause(ctx)
			continue
		}
		version = got.Version
		now := map[driver.Owner]bool{}
		for _, p := range got.Ports {
			now[identity(p.Owner)] = p.Active
		}
		d.mu.Lock()
		before := d.active
		d.active = now
		d.mu.Unlock()
		for o, active := range now {
			if active != before[o] {
				changed(o)
			}
		}
	}
}

// call makes a call to the cloud. Errors: those of the driver contract.
func (d *Driver) call(ctx context.Context, call string, r request) (answer, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return answer{}, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url+"/"+call, bytes.NewReader(body))
	if err != nil {
		return answer{}, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
	response, err := http.DefaultClient.Do(post)
	if err != nil {
		return answer{}, fmt.Errorf("%w: %w", fault.ErrUnavailable, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return answer{}, fmt.Errorf("%w: %w", fault.ErrUnavailable, err)
	}
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return answer{}, fmt.Errorf("%w: port of pod %s", fault.ErrNotFound, r.Owner.PodName)
	case http.StatusInsufficientStorage:
		return answer{}, fmt.Errorf("%w: no port is left", fault.ErrExhausted)
	default:
		return answer{}, fmt.Errorf("%w: %s", fault.ErrUnavailable, strings.TrimSpace(string(text)))
	}
	var out answer
	if err := json.Unmarshal(text, &out); err != nil {
		return answer{}, fmt.Errorf("%w: %w", fault.ErrUnavailable, err)
	}
	return out, nil
}

// Ensure implements driver.Driver.
func (d *Driver) Ensure(ctx context.Context, r *driver.Request) (*driver.Attachment, error) {
	asked := v1alpha1.Interface{
		Name: r.Interface, Network: r.Network, Driver: Name, Default: r.Default,
	}
	if r.Binding != nil {
		asked.Binding = *r.Binding
	}
	got, err := d.call(ctx, "ensure", request{Owner: r.Owner, Interface: asked})
	if err != nil {
		return nil, err
	}
	return &driver.Attachment{Interface: got.Ports[0].Interface, Active: got.Ports[0].Active}, nil
}

// Release implements driver.Driver.
func (d *Driver) Release(ctx context.Context, ref driver.Ref) error {
	_, err := d.call(ctx, "release", request{Owner: ref.Owner})
	return err
}

// Confirm implements driver.Driver.
func (d *Driver) Confirm(ctx context.Context, ref driver.Ref) (v1alpha1.Interface, error) {
	got, err := d.call(ctx, "confirm", request{Owner: ref.Owner, Interface: ref.Interface})
	if err != nil {
		return v1alpha1.Interface{}, err
	}
	return got.Ports[0].Interface, nil
}

// List implements driver.Driver.
func (d *Driver) List(ctx context.Context) iter.Seq2[driver.Ref, error] {
	return func(yield func(driver.Ref, error) bool) {
		got, err := d.call(ctx, "list", request{})
		if err != nil {
			yield(driver.Ref{}, err)
			return
		}
		for _, p := range got.Ports {
			if !yield(driver.Ref{Owner: p.Owner, Interface: p.Interface}, nil) {
				return
			}
		}
	}
}
