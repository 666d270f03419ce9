package plug

import (
	"context"
	"errors"
	"fmt"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// foreign is the kind of interfaces that CNI plugins make: it makes and removes nothing.
type foreign string

func (kind foreign) validate(i Interface, bound bool, binding, limits string) error {
	err := i.validateAddresses()
	if !bound {
		err = errors.Join(err, link.Invalid("binding", fmt.Errorf("must be %s%s", kind, binding)))
	}
	if i.Bandwidth != nil {
		err = errors.Join(err, link.Invalid("bandwidth", errors.New("must not be set: "+limits)))
	}
	return err
}

func (kind foreign) Plan(at link.Place, i Interface) Made {
	return Made{Kind: string(kind), ContainerID: i.ContainerID, Name: i.Name, Namespace: at}
}

func (foreign) Remove(context.Context, Made) error { return nil }

// Gone is true if the namespace has ended. The DEL of executed plugins is no part of it: the
// record ends only after it.
func (foreign) Gone(_ context.Context, m Made) (bool, error) { return m.Namespace.Gone(), nil }

// Differences is always empty: the plugin that made the interface checks it.
func (foreign) Differences(context.Context, Made, Inspected) ([]string, error) { return nil, nil }

// addressOnly is the kind of interfaces that a plugin makes which asks for the addresses.
type addressOnly struct{ foreign }

// AddressOnly returns the kind KindAddressOnly.
func AddressOnly() Kind { return addressOnly{KindAddressOnly} }

func (a addressOnly) Validate(i Interface) error {
	return a.validate(i, i.Binding.AddressOnly != nil, "", "another plugin makes the interface")
}

func (a addressOnly) Make(_ context.Context, _ *link.Namespace, i Interface) error {
	return a.Validate(i)
}

// delegate is the kind of interfaces that executed plugins make.
type delegate struct{ foreign }

// Delegate returns the kind KindDelegate.
func Delegate() Kind { return delegate{KindDelegate} }

func (d delegate) Validate(i Interface) error {
	return d.validate(i, i.Binding.Delegate != nil, ", with a list of plugins", "plugins make the interface, and limit it")
}

// Make refuses an interface whose name is taken. Plugins would fail, and their DEL would
// remove the interface of others.
func (d delegate) Make(ctx context.Context, ns *link.Namespace, i Interface) error {
	if err := errors.Join(d.Validate(i), ctx.Err()); err != nil {
		return err
	}
	return ns.NameIsFree(i.Name)
}
