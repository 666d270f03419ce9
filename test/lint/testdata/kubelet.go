// at: internal/node/wanting/example.go

// Package wanting breaks the rule kubelet.
package wanting

import (
	_ "google.golang.org/grpc"                  // want: depguard:kubelet
	_ "k8s.io/kubelet/pkg/apis/podresources/v1" // want: depguard:kubelet
)
