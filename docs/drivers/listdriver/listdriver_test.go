package listdriver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/test/drivertest"
)

const capacity = 6

// backend returns an empty backend of the contract's suite. Each driver that it starts has
// only the ConfigMap in common with the others.
func backend(*testing.T) drivertest.Backend {
	var mu sync.Mutex
	var before, after func()
	call := func(do *func()) {
		mu.Lock()
		f := *do
		*do = nil
		mu.Unlock()
		if f != nil {
			f()
		}
	}
	write := func(ctx context.Context, write func() error) error {
		call(&before)
		if err := ctx.Err(); err != nil {
			return err
		}
		err := write()
		call(&after)
		return err
	}
	api := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return write(ctx, func() error { return c.Create(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return write(ctx, func() error { return c.Update(ctx, o, opts...) })
		},
	})
	return drivertest.Backend{
		Capacity: capacity,
		Recover:  func() {}, // a released address is free at once
		Start:    func(*testing.T) driver.Driver { return newDriver(api) },
		Interrupt: func(isAfter bool, do func()) {
			mu.Lock()
			defer mu.Unlock()
			if isAfter {
				after = do
			} else {
				before = do
			}
		},
	}
}

func newDriver(api client.Client) *Driver {
	d := &Driver{API: api, Book: client.ObjectKey{Namespace: "fairlead-system", Name: "addresses"}, Parent: "bond0"}
	for n := range capacity {
		d.Addresses = append(d.Addresses, netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/24", 10+n)))
	}
	return d
}

func TestContract(t *testing.T) { drivertest.Run(t, backend) }

func TestRequestedAddress(t *testing.T) {
	d := newDriver(fake.NewClientBuilder().Build())
	for n, tt := range []struct {
		address string
		err     error
		says    string
	}{
		{address: "192.0.2.12"},
		{address: "192.0.2.12", err: fault.ErrConflict, says: "192.0.2.12 is held by another pod"},
		{address: "192.0.2.99", err: fault.ErrInvalid, says: "ips: 192.0.2.99 is not in the list [192.0.2.10/24"},
	} {
		r := drivertest.Request(n)
		r.Addresses = []netip.Addr{netip.MustParseAddr(tt.address)}
		a, err := d.Ensure(t.Context(), r)
		if !errors.Is(err, tt.err) || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: error %v; want %v: %s", tt.address, err, tt.err, tt.says)
		}
		if err == nil && a.Interface.Addresses[0] != tt.address+"/24" {
			t.Errorf("%s: got %v", tt.address, a.Interface.Addresses)
		}
	}
}

// A ConfigMap that was edited by hand is reported, and never overwritten.
func TestDamagedBook(t *testing.T) {
	api := fake.NewClientBuilder().Build()
	d := newDriver(api)
	if _, err := d.Ensure(t.Context(), drivertest.Request(0)); err != nil {
		t.Fatal(err)
	}
	_, o, err := d.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	o.Data["ten"] = "{}"
	if err := api.Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Ensure(t.Context(), drivertest.Request(1)); !errors.Is(err, fault.ErrUnavailable) || !strings.Contains(err.Error(), "key ten") {
		t.Errorf("error %v", err)
	}
}
