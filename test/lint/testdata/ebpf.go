// at: test/openstack/vlans/example.go

// Package example breaks the rule ebpf.
package example

import (
	_ "github.com/cilium/ebpf"     // want: depguard:ebpf
	_ "github.com/cilium/ebpf/asm" // want: depguard:ebpf
)
