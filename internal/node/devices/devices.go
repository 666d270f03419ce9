// Package devices asks the kubelet which devices of device plugins a pod has: the service
// v1.PodResourcesLister on a unix socket. It speaks the protocol of gRPC itself, since the
// library needs a sixth of the daemon's memory (ADR 0022).
package devices

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"time"

	"fairlead.dev/fairlead/internal/fault"
)

// Kubelet is the kubelet of this node. Its methods are safe for concurrent use.
type Kubelet struct {
	socket string
	client *http.Client
}

// New returns the kubelet at a socket. It connects when it is asked.
func New(socket string) *Kubelet {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	return &Kubelet{socket, &http.Client{Transport: &http.Transport{
		Protocols:       &protocols,
		IdleConnTimeout: 10 * time.Second,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}}
}

// Of returns the IDs of the devices that a pod has, by resource, sorted. The kubelet
// allocates them before the pod's sandbox is made, and they stay the same for the life of
// the pod. Errors: fault.ErrNotReady if the kubelet does not answer or does not know the
// pod.
func (k *Kubelet) Of(ctx context.Context, namespace, name string) (map[string][]string, error) {
	p, err := k.get(ctx, namespace, name)
	if err != nil { // the kubelet may be older than the method, or have it switched off
		p, err = k.find(ctx, namespace, name)
	}
	if err != nil {
		return nil, fault.Errorf(fault.ErrNotReady, "the devices of pod %s/%s: the kubelet at %s: %w", namespace, name, k.socket, err)
	}
	for resource := range p.devices {
		slices.Sort(p.devices[resource])
		p.devices[resource] = slices.Compact(p.devices[resource])
	}
	return maps.Clone(p.devices), nil
}

// get asks for one pod.
func (k *Kubelet) get(ctx context.Context, namespace, name string) (pod, error) {
	reply, err := k.call(ctx, "Get", getRequest(namespace, name))
	if err != nil {
		return pod{}, err
	}
	pods, err := readPods(reply)
	if err == nil && (len(pods) != 1 || pods[0].namespace != namespace || pods[0].name != name) {
		err = fmt.Errorf("the answer to Get is not about the pod")
	}
	if err != nil {
		return pod{}, err
	}
	return pods[0], nil
}

// find looks for a pod among all of the node.
func (k *Kubelet) find(ctx context.Context, namespace, name string) (pod, error) {
	reply, err := k.call(ctx, "List", nil)
	if err != nil {
		return pod{}, err
	}
	pods, err := readPods(reply)
	if err != nil {
		return pod{}, err
	}
	n := slices.IndexFunc(pods, func(p pod) bool { return p.namespace == namespace && p.name == name })
	if n < 0 {
		return pod{}, fmt.Errorf("it does not list the pod among its %d", len(pods))
	}
	return pods[n], nil
}
