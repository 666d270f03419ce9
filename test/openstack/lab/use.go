package lab

import (
	"os"
	"testing"
)

// Variable is the environment variable with the state directory of the laboratory that
// tests use. `make openstack` sets it.
const Variable = "FAIRLEAD_OPENSTACK_LAB"

// Use gives a test the laboratory that `make openstack` has started, beside other tests. A
// test removes all that it makes there. Without a laboratory the test is skipped.
func Use(tb testing.TB) *Lab {
	tb.Helper()
	dir := os.Getenv(Variable)
	if dir == "" {
		tb.Skip("needs the OpenStack laboratory: make openstack, or make openstack-lab and the variable " + Variable + " that it prints")
	}
	l, err := Open(dir)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}
