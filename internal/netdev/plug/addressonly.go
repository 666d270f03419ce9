package plug

import (
	"context"
	"errors"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// addressOnly is the kind of interfaces that another plugin makes, with addresses from
// Fairlead. It makes nothing and removes nothing.
type addressOnly struct{}

// AddressOnly returns the kind KindAddressOnly.
func AddressOnly() Kind { return addressOnly{} }

func (addressOnly) Validate(i Interface) error {
	err := i.validateAddresses()
	if i.Binding.AddressOnly == nil {
		err = errors.Join(err, link.Invalid("binding", errors.New("must be addressOnly")))
	}
	if i.Bandwidth != nil {
		err = errors.Join(err, link.Invalid("bandwidth", errors.New("must not be set: another plugin makes the interface")))
	}
	return err
}

func (addressOnly) Plan(at link.Place, i Interface) Made {
	return Made{Kind: KindAddressOnly, ContainerID: i.ContainerID, Name: i.Name, Namespace: at}
}

func (a addressOnly) Make(_ context.Context, _ *link.Namespace, i Interface) error {
	return a.Validate(i)
}

func (addressOnly) Remove(context.Context, Made) error { return nil }

// Gone is true if the namespace has ended. The interface that the other plugin made in it
// is unknown.
func (addressOnly) Gone(_ context.Context, m Made) (bool, error) { return m.Namespace.Gone(), nil }

// Differences is always empty: the plugin that made the interface checks it.
func (addressOnly) Differences(context.Context, Made, Inspected) ([]string, error) { return nil, nil }
