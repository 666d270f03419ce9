package cloud

import (
	"context"
	"testing"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/test/drivertest"
)

func TestDriver(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) drivertest.Backend {
		c := New(t, 8)
		return drivertest.Backend{
			Start:     func(*testing.T) driver.Driver { return NewDriver(c.URL) },
			Capacity:  8,
			Recover:   func() {},
			Interrupt: c.Interrupt,
		}
	})
}

// Activations that starts late reports the ports that became active before, with one call
// to the cloud for all of them.
func TestActivations(t *testing.T) {
	c := New(t, 8)
	d := NewDriver(c.URL)
	for n := range 3 {
		if _, err := d.Ensure(t.Context(), drivertest.Request(n)); err != nil {
			t.Fatal(err)
		}
	}
	c.Activate()
	ctx, cancel := context.WithCancel(t.Context())
	heard, done := make(chan driver.Owner, 8), make(chan struct{})
	go func() { defer close(done); d.Parts().Activation.Changes(ctx, func(o driver.Owner) { heard <- o }) }()
	for range 3 {
		if active, _ := d.Parts().Activation.Active(driver.Ref{Owner: <-heard}); !active {
			t.Error("Activations reports an owner whose port is not active")
		}
	}
	cancel()
	<-done
	if n := c.Calls("changes"); n > 2 {
		t.Errorf("asked %d times", n)
	}
}
