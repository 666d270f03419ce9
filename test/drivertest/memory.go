package drivertest

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/fault"
)

// Memory is a driver whose backend is memory. It passes the suite. Tests can make it fail,
// be exhausted, or activate its interfaces later.
type Memory struct {
	name     string
	capacity int

	mu     sync.Mutex
	held   map[memoryKey]driver.Ref
	slots  []bool
	active bool
	// changed are the functions of the running Activations.
	changed map[int]func(driver.Owner)
	fail    func(method string, o driver.Owner) error
	pool    func(o driver.Owner) string
	calls   map[string]int
	// before and after are called once, at the next write.
	before, after func()
}

// memoryKey is the identity of an owner: the owner without its node.
type memoryKey driver.Owner

func keyOf(o driver.Owner) memoryKey {
	o.NodeName = ""
	return memoryKey(o)
}

// NewMemory returns a driver with room for capacity interfaces, 1 to 254.
func NewMemory(name string, capacity int) *Memory {
	return &Memory{
		name:     name,
		capacity: capacity,
		held:     map[memoryKey]driver.Ref{},
		slots:    make([]bool, capacity),
		active:   true,
		changed:  map[int]func(driver.Owner){},
		pool:     func(driver.Owner) string { return "" },
		calls:    map[string]int{},
	}
}

// FailWith makes a call fail with the error that f returns for it. The methods are
// "ensure", "release", "list" and "confirm". A nil f ends the failures.
func (m *Memory) FailWith(f func(method string, o driver.Owner) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = f
}

// Interrupt makes the next Ensure that takes an interface call do, once, before or after it
// takes it.
func (m *Memory) Interrupt(after bool, do func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if after {
		m.after = do
	} else {
		m.before = do
	}
}

// interrupted calls do, once. It returns fault.ErrUnavailable if ctx has ended. The lock
// is held.
func (m *Memory) interrupted(ctx context.Context, do *func()) error {
	if *do == nil {
		return nil
	}
	(*do)()
	*do = nil
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", fault.ErrUnavailable, err)
	}
	return nil
}

// PoolBy sets the function that names the pool of a new interface. Without it, interfaces
// have no pool.
func (m *Memory) PoolBy(f func(o driver.Owner) string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pool = f
}

// SetActive sets whether all interfaces are active, and calls the functions of Activations.
// New interfaces have WaitForActive while active is false.
func (m *Memory) SetActive(active bool) {
	m.mu.Lock()
	m.active = active
	told, refs := slices.Collect(maps.Values(m.changed)), slices.Collect(maps.Values(m.held))
	m.mu.Unlock()
	for _, changed := range told {
		for _, ref := range refs {
			changed(ref.Owner)
		}
	}
}

// Parts returns the driver's parts.
func (m *Memory) Parts() driver.Parts {
	return driver.Parts{Driver: m, Activation: driver.Activation{Active: m.isActive, Changes: m.activations}}
}

// isActive is driver.Activation.Active.
func (m *Memory) isActive(ref driver.Ref) (bool, string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.held[keyOf(ref.Owner)]
	return ok && m.active, ""
}

// activations is driver.Activation.Changes.
func (m *Memory) activations(ctx context.Context, changed func(driver.Owner)) {
	m.mu.Lock()
	id := len(m.changed)
	for m.changed[id] != nil {
		id++
	}
	m.changed[id] = changed
	refs := slices.Collect(maps.Values(m.held))
	m.mu.Unlock()
	for _, ref := range refs {
		changed(ref.Owner)
	}
	<-ctx.Done()
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.changed, id)
}

// Held returns the owners of all interfaces, sorted by pod.
func (m *Memory) Held() []driver.Owner {
	m.mu.Lock()
	defer m.mu.Unlock()
	var owners []driver.Owner
	for _, ref := range m.held {
		owners = append(owners, ref.Owner)
	}
	slices.SortFunc(owners, func(a, b driver.Owner) int {
		return cmp.Or(cmp.Compare(a.PodName, b.PodName), cmp.Compare(a.PodUID, b.PodUID), cmp.Compare(a.Interface, b.Interface))
	})
	return owners
}

// Calls returns how often a method was called.
func (m *Memory) Calls(method string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls[method]
}

// begin counts a call and returns its error, if it has to fail. The lock is held.
func (m *Memory) begin(ctx context.Context, method string, o driver.Owner) error {
	m.calls[method]++
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", fault.ErrUnavailable, err)
	}
	if m.fail != nil {
		return m.fail(method, o)
	}
	return nil
}

// Ensure implements driver.Driver.
func (m *Memory) Ensure(ctx context.Context, r *driver.Request) (*driver.Attachment, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.begin(ctx, "ensure", r.Owner); err != nil {
		return nil, err
	}
	key := keyOf(r.Owner)
	if ref, ok := m.held[key]; ok {
		return &driver.Attachment{Interface: ref.Interface, Active: m.active}, nil
	}
	slot := slices.Index(m.slots, false)
	if slot < 0 {
		return nil, fmt.Errorf("%w: %d of %d taken", fault.ErrExhausted, m.capacity, m.capacity)
	}
	if err := m.interrupted(ctx, &m.before); err != nil {
		return nil, err
	}
	m.slots[slot] = true
	iface := v1alpha1.Interface{
		Name:          r.Interface,
		Network:       r.Network,
		Driver:        m.name,
		Default:       r.Default,
		Pool:          m.pool(r.Owner),
		Addresses:     []string{fmt.Sprintf("192.0.2.%d/32", slot+1)},
		WaitForActive: !m.active,
		Binding:       v1alpha1.Binding{Routed: &v1alpha1.RoutedBinding{}},
	}
	if r.AddressOnly {
		iface.Binding = v1alpha1.Binding{AddressOnly: &v1alpha1.AddressOnlyBinding{}}
	}
	if r.Binding != nil {
		iface.Binding = *r.Binding.DeepCopy()
	}
	m.held[key] = driver.Ref{Owner: r.Owner, Interface: iface}
	if err := m.interrupted(ctx, &m.after); err != nil {
		return nil, err
	}
	return &driver.Attachment{Interface: iface, Active: m.active}, nil
}

// Release implements driver.Driver.
func (m *Memory) Release(ctx context.Context, ref driver.Ref) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.begin(ctx, "release", ref.Owner); err != nil {
		return err
	}
	key := keyOf(ref.Owner)
	have, ok := m.held[key]
	if !ok {
		return nil
	}
	var slot int
	if _, err := fmt.Sscanf(have.Interface.Addresses[0], "192.0.2.%d/32", &slot); err != nil {
		return fmt.Errorf("%w: %w", fault.ErrUnavailable, err)
	}
	m.slots[slot-1] = false
	delete(m.held, key)
	return nil
}

// Confirm implements driver.Driver.
func (m *Memory) Confirm(ctx context.Context, ref driver.Ref) (v1alpha1.Interface, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.begin(ctx, "confirm", ref.Owner); err != nil {
		return v1alpha1.Interface{}, err
	}
	have, ok := m.held[keyOf(ref.Owner)]
	if !ok || !slices.Equal(have.Interface.Addresses, ref.Interface.Addresses) {
		return v1alpha1.Interface{}, fmt.Errorf("%w: pod %s", fault.ErrNotFound, ref.PodName)
	}
	return have.Interface, nil
}

// List implements driver.Driver.
func (m *Memory) List(ctx context.Context) iter.Seq2[driver.Ref, error] {
	return func(yield func(driver.Ref, error) bool) {
		m.mu.Lock()
		err := m.begin(ctx, "list", driver.Owner{})
		refs := slices.Collect(maps.Values(m.held))
		m.mu.Unlock()
		if err != nil {
			yield(driver.Ref{}, err)
			return
		}
		for _, ref := range refs {
			if !yield(ref, nil) {
				return
			}
		}
	}
}
