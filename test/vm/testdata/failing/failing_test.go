// Package failing has a test with each verdict, for a run in the VM that has to fail.
package failing

import "testing"

func TestPasses(t *testing.T) { t.Log("passes") }

func TestFails(t *testing.T) { t.Error("fails on purpose") }

func TestSkips(t *testing.T) { t.Skip("skips on purpose") }
