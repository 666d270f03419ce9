// at: cmd/fairlead-cni/example.go

// Package main breaks the rules cni-thin and cni-start.
package main

import (
	_ "encoding/json" // want: depguard:cni-start
	_ "fmt"           // want: depguard:cni-start
	_ "io"
	_ "io/fs"
	_ "net"                // want: depguard:cni-start
	_ "net/http"           // want: depguard:cni-start
	_ "net/http/httptrace" // want: depguard:cni-start
	_ "net/rpc"            // want: depguard:cni-start
	_ "os"
	_ "reflect" // want: depguard:cni-start
	_ "time"

	_ "github.com/containernetworking/cni/pkg/skel" // want: depguard:cni-thin
	_ "google.golang.org/grpc"                      // want: depguard:cni-thin
	_ "k8s.io/apimachinery/pkg/types"               // want: depguard:cni-thin

	_ "fairlead.dev/fairlead/api/v1alpha1" // want: depguard:cni-thin
	_ "fairlead.dev/fairlead/internal/cniproto"
	_ "fairlead.dev/fairlead/internal/cniproto/server" // want: depguard:cni-thin depguard:cniproto-server
	_ "fairlead.dev/fairlead/internal/run"             // want: depguard:cni-thin
)

func main() {}
