// at: internal/ipam/block/example/example.go

// Package example breaks the rule ipam-block.
package example

import (
	_ "context"

	_ "github.com/containernetworking/cni/pkg/types" // want: depguard:ipam-block
	_ "github.com/go-logr/logr"
	_ "github.com/prometheus/client_golang/prometheus"
	_ "golang.org/x/sync/errgroup"
	_ "k8s.io/api/core/v1"
	_ "k8s.io/apimachinery/pkg/types"
	_ "k8s.io/apiserver/pkg/server" // want: depguard:ipam-block
	_ "k8s.io/client-go/tools/cache"
	_ "k8s.io/klog/v2"
	_ "k8s.io/utils/clock"
	_ "sigs.k8s.io/controller-runtime/pkg/client"

	_ "fairlead.dev/fairlead/api/v1alpha1"
	_ "fairlead.dev/fairlead/internal/driver" // want: depguard:ipam-block
	_ "fairlead.dev/fairlead/internal/ipam"
	_ "fairlead.dev/fairlead/internal/pod" // want: depguard:ipam-block
)
