package network

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"fairlead.dev/fairlead/internal/cniproto"
)

// Init has the plugin begin. It is called once, before everything else.
func (m *Manager) Init(ctx context.Context) error {
	if !m.begun.CompareAndSwap(false, true) {
		return errors.New("network plugin " + m.plugin.Name() + " was begun already")
	}
	return m.plugin.Init(ctx, m)
}

// SetUpPod has the plugin plug a sandbox, in its turn (Add).
func (m *Manager) SetUpPod(ctx context.Context, r cniproto.Request) (result []byte, err error) {
	start := time.Now()
	err = m.Add(ctx, r.ContainerID, r.IfName, func(ctx context.Context) (err error) {
		result, err = m.plugin.SetUpPod(ctx, r)
		return err
	})
	m.metrics.kubelet.done(operationSetUp, start, err)
	return result, err
}

// TearDownPod has the plugin unplug a sandbox, in its turn (Del).
func (m *Manager) TearDownPod(ctx context.Context, r cniproto.Request) error {
	start := time.Now()
	err := m.Del(ctx, r.ContainerID, r.IfName, func(ctx context.Context) error { return m.plugin.TearDownPod(ctx, r) })
	m.metrics.kubelet.done(operationTearDown, start, err)
	return err
}

// PodIPs are the addresses of an interface, as the plugin finds them.
func (m *Manager) PodIPs(netns, ifName string) ([]netip.Addr, error) {
	start := time.Now()
	ips, err := m.plugin.PodIPs(netns, ifName)
	m.metrics.kubelet.done(operationStatus, start, err)
	return ips, err
}

// Status is the plugin's. Like Event it waits for nothing: a stuck pod is no
// reason not to answer.
func (m *Manager) Status() error { return m.plugin.Status() }

// Event tells the plugin.
func (m *Manager) Event(e Event) { m.plugin.Event(e) }
