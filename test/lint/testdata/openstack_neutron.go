// at: internal/driver/neutron/example/example.go

// Package example is the one place that may talk to OpenStack.
package example

import (
	_ "github.com/gophercloud/gophercloud/v2"
)
