// at: internal/cniproto/example.go

// Package cniproto breaks the rules cni-thin and cni-net.
package cniproto

import (
	_ "encoding/json"
	_ "net"                // want: depguard:cni-net
	_ "net/http"           // want: depguard:cni-net
	_ "net/http/httptrace" // want: depguard:cni-net
	_ "net/rpc"            // want: depguard:cni-net
	_ "os"

	_ "github.com/containernetworking/cni/pkg/skel" // want: depguard:cni-thin
	_ "google.golang.org/grpc"                      // want: depguard:cni-thin
	_ "k8s.io/apimachinery/pkg/types"               // want: depguard:cni-thin

	_ "fairlead.dev/fairlead/api/v1alpha1" // want: depguard:cni-thin
)
