// at: test/openstack/example/example.go

// Package example is a test program that talks to OpenStack.
package example

import (
	_ "github.com/gophercloud/gophercloud/v2"
)
