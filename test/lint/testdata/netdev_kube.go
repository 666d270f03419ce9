// at: internal/netdev/kube/example.go

// Package kube breaks the rule netdev-kube.
package kube

import (
	_ "k8s.io/apimachinery/pkg/types"
	_ "k8s.io/client-go/kubernetes"               // want: depguard:netdev-kube
	_ "sigs.k8s.io/controller-runtime"            // want: depguard:netdev-kube
	_ "sigs.k8s.io/controller-runtime/pkg/client" // want: depguard:netdev-kube
)
