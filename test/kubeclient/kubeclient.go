// Package kubeclient connects the programs and tests of this folder to a control plane.
package kubeclient

import (
	"errors"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Config reads a kubeconfig. Requests are not limited.
func Config(kubeconfig string) (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	cfg.QPS = -1
	return cfg, nil
}

// Connect returns a client for a kubeconfig, and the configuration behind it. The client
// reads from the API server, not from a cache.
func Connect(kubeconfig string) (*rest.Config, client.WithWatch, error) {
	cfg, err := Config(kubeconfig)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	c, err := New(cfg)
	return cfg, c, err
}

// New returns a client with a configuration. Its scheme has Kubernetes' kinds,
// CustomResourceDefinitions and Fairlead's kinds; more can be added.
func New(cfg *rest.Config) (client.WithWatch, error) {
	scheme := runtime.NewScheme()
	err := errors.Join(clientgoscheme.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme))
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	c, err := client.NewWithWatch(cfg, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	return c, nil
}
