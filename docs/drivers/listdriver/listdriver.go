// Package listdriver is the example of a driver: it gives addresses of a list, each with a
// macvlan interface on a link of the nodes. One ConfigMap records their owners.
package listdriver

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/fault"
)

// Name of the driver in networks and records.
const Name = "list"

// Driver implements driver.Driver.
type Driver struct {
	// API reads and writes at the API server itself, without a cache.
	API client.Client
	// Book is the name of the ConfigMap, which the driver makes.
	Book client.ObjectKey
	// Addresses are IPv4 addresses with the prefix length of their network, in the order
	// in which they are given.
	Addresses []netip.Prefix
	// Parent is the link of the nodes on which interfaces are made.
	Parent string
}

// Parts returns the parts of the driver. Networks with the ipam.type "list" are its own.
func (d *Driver) Parts() driver.Parts {
	return driver.Parts{Driver: d, Networks: driver.Networks{Types: []string{Name}}}
}

// book maps addresses to their holders.
type book map[netip.Addr]holder

// holder is an owner and its interface, as the ConfigMap has them.
type holder struct {
	Owner     driver.Owner
	Interface v1alpha1.Interface
}

// of returns the address and the interface of an owner. All fields but the node are its
// identity.
func (b book) of(o driver.Owner) (netip.Addr, v1alpha1.Interface, bool) {
	for a, h := range b {
		h.Owner.NodeName = o.NodeName
		if h.Owner == o {
			return a, h.Interface, true
		}
	}
	return netip.Addr{}, v1alpha1.Interface{}, false
}

// Ensure implements driver.Driver.
func (d *Driver) Ensure(ctx context.Context, r *driver.Request) (*driver.Attachment, error) {
	var got v1alpha1.Interface
	err := d.change(ctx, func(b book) (bool, error) {
		var ok bool
		if _, got, ok = b.of(r.Owner); ok {
			return false, nil
		}
		chosen, err := d.choose(b, r)
		if err != nil {
			return false, err
		}
		got = d.interfaceOf(r, chosen)
		if r.Writable != nil {
			if err := r.Writable(got); err != nil {
				return false, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
			}
		}
		b[chosen.Addr()] = holder{Owner: r.Owner, Interface: got}
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	return &driver.Attachment{Interface: got, Active: true}, nil
}

// choose returns the requested address, or the first free address.
func (d *Driver) choose(b book, r *driver.Request) (netip.Prefix, error) {
	for _, p := range d.Addresses {
		_, taken := b[p.Addr()]
		switch {
		case len(r.Addresses) == 0 && !taken:
			return p, nil
		case len(r.Addresses) == 0 || p.Addr() != r.Addresses[0]:
		case taken:
			return p, fmt.Errorf("%w: %s is held by another pod", fault.ErrConflict, p.Addr())
		default:
			return p, nil
		}
	}
	if len(r.Addresses) > 0 {
		return netip.Prefix{}, fmt.Errorf("%w: ips: %s is not in the list %v", fault.ErrInvalid, r.Addresses[0], d.Addresses)
	}
	return netip.Prefix{}, fmt.Errorf("%w: %d of %d addresses taken", fault.ErrExhausted, len(b), len(d.Addresses))
}

func (d *Driver) interfaceOf(r *driver.Request, address netip.Prefix) v1alpha1.Interface {
	i := v1alpha1.Interface{
		Name: r.Interface, Network: r.Network, Driver: Name, Default: r.Default,
		Addresses: []string{address.String()},
		Binding:   v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{Parent: d.Parent, Mode: "bridge"}},
	}
	switch {
	case r.AddressOnly:
		i.Binding = v1alpha1.Binding{AddressOnly: &v1alpha1.AddressOnlyBinding{}}
	case r.Binding != nil:
		i.Binding = *r.Binding.DeepCopy()
	}
	return i
}

// Release implements driver.Driver.
func (d *Driver) Release(ctx context.Context, ref driver.Ref) error {
	return d.change(ctx, func(b book) (bool, error) {
		a, _, ok := b.of(ref.Owner)
		delete(b, a)
		return ok, nil
	})
}

// List implements driver.Driver.
func (d *Driver) List(ctx context.Context) iter.Seq2[driver.Ref, error] {
	return func(yield func(driver.Ref, error) bool) {
		b, _, err := d.read(ctx)
		if err != nil {
			yield(driver.Ref{}, err)
			return
		}
		for _, a := range slices.SortedFunc(maps.Keys(b), netip.Addr.Compare) {
			if !yield(driver.Ref{Owner: b[a].Owner, Interface: b[a].Interface}, nil) {
				return
			}
		}
	}
}

// Confirm implements driver.Driver.
func (d *Driver) Confirm(ctx context.Context, ref driver.Ref) (v1alpha1.Interface, error) {
	b, _, err := d.read(ctx)
	if err != nil {
		return v1alpha1.Interface{}, err
	}
	_, have, ok := b.of(ref.Owner)
	if !ok || !slices.Equal(have.Addresses, ref.Interface.Addresses) {
		return v1alpha1.Interface{}, fmt.Errorf("%w: pod %s/%s has none of %v", fault.ErrNotFound, ref.Namespace, ref.PodName, ref.Interface.Addresses)
	}
	return have, nil
}

// change writes the book after a change by do, which reports whether it changed anything.
// The API server refuses the write if another process has changed the book since it was
// read: do then gets the new book.
func (d *Driver) change(ctx context.Context, do func(book) (bool, error)) error {
	for {
		b, o, err := d.read(ctx)
		if err != nil {
			return err
		}
		changed, err := do(b)
		if err != nil || !changed {
			return err
		}
		if o.Data, err = encode(b); err != nil {
			return err
		}
		if o.ResourceVersion == "" {
			err = d.API.Create(ctx, o)
		} else {
			err = d.API.Update(ctx, o)
		}
		switch {
		case err == nil:
			return nil
		case !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err):
			return fmt.Errorf("%w: write ConfigMap %s: %w", fault.ErrUnavailable, d.Book, err)
		}
	}
}

// read reads the book. The ConfigMap has no ResourceVersion if it does not exist.
func (d *Driver) read(ctx context.Context) (book, *corev1.ConfigMap, error) {
	o := &corev1.ConfigMap{}
	err := d.API.Get(ctx, d.Book, o)
	if apierrors.IsNotFound(err) {
		o.ObjectMeta = metav1.ObjectMeta{Namespace: d.Book.Namespace, Name: d.Book.Name}
	} else if err != nil {
		return nil, nil, fmt.Errorf("%w: read ConfigMap %s: %w", fault.ErrUnavailable, d.Book, err)
	}
	b := book{}
	for key, text := range o.Data {
		a, err := netip.ParseAddr(key)
		var h holder
		if err == nil {
			err = json.Unmarshal([]byte(text), &h)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%w: ConfigMap %s: key %s: want an address and its holder: %w", fault.ErrUnavailable, d.Book, key, err)
		}
		b[a] = h
	}
	return b, o, nil
}

func encode(b book) (map[string]string, error) {
	out := map[string]string{}
	for a, h := range b {
		text, err := json.Marshal(h)
		if err != nil {
			return nil, fmt.Errorf("encode the holder of %s: %w", a, err)
		}
		out[a.String()] = string(text)
	}
	return out, nil
}
