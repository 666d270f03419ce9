// at: internal/driver/neutron/example/example.go

// Package example breaks the rule openstack: the driver asks internal/openstack/cloud.
package example

import (
	_ "github.com/gophercloud/gophercloud/v2" // want: depguard:openstack
)
