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
)

// Memory is a driver whose backend is memory. It passes the suite, and fails
// when told to.
type Memory struct {
	name     string
	capacity int

	mu     sync.Mutex
	held   map[memoryKey]driver.Ref
	slots  []bool
	active bool
	// changed are told of owners whose interfaces are active now.
	changed map[int]func(driver.Owner)
	fail    func(method string, o driver.Owner) error
	pool    func(o driver.Owner) string
	calls   map[string]int
	// before and after the next write are called once.
	before, after func()
}

// memoryKey is the identity of an owner: one without a node.
type memoryKey driver.Owner

func keyOf(o driver.Owner) memoryKey {
	o.NodeName = ""
	return memoryKey(o)
}

// NewMemory returns a driver with room for so many interfaces.
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

// FailWith makes calls fail for which f returns an error; nil ends that.
// Methods are "ensure", "release", "list" and "confirm".
func (m *Memory) FailWith(f func(method string, o driver.Owner) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = f
}

// Interrupt makes the next Ensure that takes something call do, once, before or
// after it has taken it.
func (m *Memory) Interrupt(after bool, do func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if after {
		m.after = do
	} else {
		m.before = do
	}
}

// interrupted calls one of them and says whether the call is to end. The lock is
// held.
func (m *Memory) interrupted(ctx context.Context, do *func()) error {
	if *do == nil {
		return nil
	}
	(*do)()
	*do = nil
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	return nil
}

// PoolBy says which pool an interface is from; without it, none.
func (m *Memory) PoolBy(f func(o driver.Owner) string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pool = f
}

// SetActive says whether interfaces are active; while they are not, records
// ask the node to wait.
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

// Parts is what the driver brings.
func (m *Memory) Parts() driver.Parts {
	return driver.Parts{Driver: m, Active: m.isActive, Activations: m.activations}
}

// isActive is driver.Parts.Active.
func (m *Memory) isActive(o driver.Owner) (bool, string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.held[keyOf(o)]
	return ok && m.active, ""
}

// activations is driver.Parts.Activations.
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

// Held returns the owners that hold something, sorted by pod.
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

// begin counts a call and decides whether it fails. The lock is held.
func (m *Memory) begin(ctx context.Context, method string, o driver.Owner) error {
	m.calls[method]++
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
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
		return nil, fmt.Errorf("%w: %d of %d taken", driver.ErrExhausted, m.capacity, m.capacity)
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
		Addresses:     []string{fmt.Sprintf("192.0.2.%d/24", slot+1)},
		WaitForActive: !m.active,
		Binding:       v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{Name: "fairlead0"}},
	}
	if r.AddressOnly {
		iface.Binding = v1alpha1.Binding{AddressOnly: &v1alpha1.AddressOnlyBinding{}}
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
	if _, err := fmt.Sscanf(have.Interface.Addresses[0], "192.0.2.%d/24", &slot); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
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
		return v1alpha1.Interface{}, fmt.Errorf("%w: pod %s", driver.ErrNotFound, ref.PodName)
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
