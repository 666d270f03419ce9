package plugin

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/node/turns"
)

// Manager has a plugin plug and unplug sandboxes, each in its turn, as the kubelet's
// plugin manager did.
type Manager struct {
	plugin  Plugin
	turns   *turns.Turns
	kubelet *kubeletMetrics // nil unless they were asked for
	begun   atomic.Bool
}

// NewManager returns the manager of a plugin. Metrics are kept in r, nil keeps none;
// kubelet says whether they are kept under the kubelet's names of old too.
func NewManager(p Plugin, r prometheus.Registerer, kubelet bool) (*Manager, error) {
	t, err := turns.New(r)
	if err != nil {
		return nil, err
	}
	m := &Manager{plugin: p, turns: t}
	if kubelet && r != nil {
		m.kubelet = newKubeletMetrics()
		if err := m.kubelet.register(r); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

// Init has the plugin begin. It is called once, before everything else.
func (m *Manager) Init(ctx context.Context) error {
	if !m.begun.CompareAndSwap(false, true) {
		return errors.New("network plugin " + m.plugin.Name() + " was begun already")
	}
	return m.plugin.Init(ctx, m.turns)
}

// SetUpPod has the plugin plug a sandbox, in its turn (turns.Add).
func (m *Manager) SetUpPod(ctx context.Context, r cniproto.Request) (result []byte, err error) {
	start := time.Now()
	err = m.turns.Add(ctx, r.ContainerID, r.IfName, func(ctx context.Context) (err error) {
		result, err = m.plugin.SetUpPod(ctx, r)
		return err
	})
	m.kubelet.done(operationSetUp, start, err)
	return result, err
}

// TearDownPod has the plugin unplug a sandbox, in its turn (turns.Del).
func (m *Manager) TearDownPod(ctx context.Context, r cniproto.Request) error {
	start := time.Now()
	err := m.turns.Del(ctx, r.ContainerID, r.IfName, func(ctx context.Context) error { return m.plugin.TearDownPod(ctx, r) })
	m.kubelet.done(operationTearDown, start, err)
	return err
}

// PodIPs are the addresses of an interface, as the plugin finds them.
func (m *Manager) PodIPs(netns, ifName string) ([]netip.Addr, error) {
	start := time.Now()
	ips, err := m.plugin.PodIPs(netns, ifName)
	m.kubelet.done(operationStatus, start, err)
	return ips, err
}

// Status is the plugin's. Like Event it waits for nothing: a stuck pod is no
// reason not to answer.
func (m *Manager) Status() error { return m.plugin.Status() }

// Event tells the plugin.
func (m *Manager) Event(e Event) { m.plugin.Event(e) }

// Remembered is how many things are remembered of turns, by kind.
func (m *Manager) Remembered() map[string]int { return m.turns.Remembered() }
