// at: internal/openstack/cloud/example/example.go

// Package example is the home of OpenStack in the product.
package example

import (
	_ "github.com/gophercloud/gophercloud/v2"
)
