package drivertest

import (
	"testing"

	"fairlead.dev/fairlead/internal/driver"
)

func TestMemory(t *testing.T) {
	Run(t, func(*testing.T) Backend {
		m := NewMemory("memory", 8)
		return Backend{
			Start:     func(*testing.T) driver.Driver { return m },
			Capacity:  8,
			Recover:   func() {},
			Interrupt: m.Interrupt,
		}
	})
}
