package plugin

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/node/turns"
)

// Manager calls a plugin to plug and unplug sandboxes, one operation at a time for each
// sandbox, as the kubelet's plugin manager did.
type Manager struct {
	plugin  Plugin
	turns   *turns.Turns
	kubelet *kubeletMetrics // nil if they are not enabled
	begun   atomic.Bool
}

// NewManager returns the manager of a plugin. Metrics are registered in r, unless it is
// nil. kubelet adds metrics under the former names of the kubelet.
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

// Init initializes the plugin. It must be called once, before all other methods; the second
// call is an error.
func (m *Manager) Init(ctx context.Context) error {
	if !m.begun.CompareAndSwap(false, true) {
		return errors.New("network plugin " + m.plugin.Name() + " is initialized already")
	}
	return m.plugin.Init(ctx, m.turns)
}

// SetUpPod calls the plugin's SetUpPod when it is the sandbox's turn (turns.Add).
func (m *Manager) SetUpPod(ctx context.Context, r cniproto.Request) (result []byte, err error) {
	start := time.Now()
	err = m.turns.Add(ctx, r.ContainerID, r.IfName, func(ctx context.Context) (err error) {
		result, err = m.plugin.SetUpPod(ctx, r)
		return err
	})
	m.kubelet.done(operationSetUp, start, err)
	return result, err
}

// TearDownPod calls the plugin's TearDownPod when it is the sandbox's turn (turns.Del).
func (m *Manager) TearDownPod(ctx context.Context, r cniproto.Request) error {
	start := time.Now()
	err := m.turns.Del(ctx, r.ContainerID, r.IfName, func(ctx context.Context) error { return m.plugin.TearDownPod(ctx, r) })
	m.kubelet.done(operationTearDown, start, err)
	return err
}

// Status calls the plugin's Status. It takes no turn, so that a stuck pod does not delay
// the answer.
func (m *Manager) Status() error { return m.plugin.Status() }
