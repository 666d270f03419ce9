// at: cmd/fairlead-cni/example.go

// Package main breaks the rules cni-thin and cni-net.
package main

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
	_ "fairlead.dev/fairlead/internal/cniproto"
	_ "fairlead.dev/fairlead/internal/cniproto/server" // want: depguard:cni-thin depguard:cniproto-server
	_ "fairlead.dev/fairlead/internal/run"             // want: depguard:cni-thin
)

func main() {}
