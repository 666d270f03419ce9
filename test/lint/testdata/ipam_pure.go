// at: internal/ipam/example.go

// Package ipam breaks the rules ipam-pure and ipam-io.
package ipam

import (
	_ "database/sql" // want: depguard:ipam-io
	_ "log"          // want: depguard:ipam-io
	_ "math/bits"
	_ "net"               // want: depguard:ipam-io
	_ "net/http/httptest" // want: depguard:ipam-io
	_ "net/netip"
	_ "net/rpc/jsonrpc" // want: depguard:ipam-io
	_ "os"              // want: depguard:ipam-io
	_ "os/exec"         // want: depguard:exec depguard:ipam-io
	_ "syscall"         // want: depguard:ipam-io

	_ "k8s.io/apimachinery/pkg/types" // want: depguard:ipam-pure

	_ "fairlead.dev/fairlead/api/v1alpha1" // want: depguard:ipam-pure
)
