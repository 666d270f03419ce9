// at: internal/controller/openstack/example.go

// Package openstack breaks the rule openstack.
package openstack

import (
	_ "github.com/gophercloud/gophercloud/v2"                               // want: depguard:openstack
	_ "github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports" // want: depguard:openstack
)
