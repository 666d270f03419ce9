// at: internal/whereabouts/pure/example.go

// Package pure breaks the rules pod-pure and pod-io.
package pure

import (
	_ "database/sql" // want: depguard:pod-io
	_ "log"          // want: depguard:pod-io
	_ "net"          // want: depguard:pod-io
	_ "net/http"     // want: depguard:pod-io
	_ "net/netip"
	_ "net/rpc" // want: depguard:pod-io
	_ "os"      // want: depguard:pod-io
	_ "strings"
	_ "syscall" // want: depguard:pod-io
	_ "time"

	_ "k8s.io/api/core/v1"
	_ "k8s.io/apimachinery/pkg/types"
	_ "k8s.io/apiserver/pkg/server"    // want: depguard:pod-pure
	_ "k8s.io/client-go/kubernetes"    // want: depguard:pod-pure
	_ "sigs.k8s.io/controller-runtime" // want: depguard:pod-pure

	_ "fairlead.dev/fairlead/api/v1alpha1"
	_ "fairlead.dev/fairlead/internal/driver" // want: depguard:pod-pure
)
