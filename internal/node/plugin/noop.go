package plugin

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/go-logr/logr"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/node/locks"
)

// NoopName is the name of the plugin that plugs nothing.
const NoopName = "noop"

const (
	callIPTables  = "net/bridge/bridge-nf-call-iptables"
	callIP6Tables = "net/bridge/bridge-nf-call-ip6tables"
)

// Sysctls reads and writes settings of the kernel, named as their files below
// /proc/sys.
type Sysctls interface {
	Read(name string) (string, error)
	Set(name, value string) error
}

// Noop plugs nothing: another program does. As the kubelet's no-op plugin did, it only
// makes bridged packets pass the host's packet filter, which Services need. It loads no
// kernel module: the kernel has these settings only if br_netfilter is loaded.
type Noop struct{ sysctls Sysctls }

// NewNoop returns the plugin.
func NewNoop(s Sysctls) *Noop { return &Noop{sysctls: s} }

// Init sets the bridge-nf-call settings, that of IPv6 only if the kernel has it. A failure
// is only logged, because the node may not need them.
func (n *Noop) Init(ctx context.Context, _ *locks.Locks) error {
	log := logr.FromContextOrDiscard(ctx)
	if err := n.sysctls.Set(callIPTables, "1"); err != nil {
		log.Info("bridged IPv4 packets are not seen by the packet filter: Services may not work", "reason", err.Error())
	}
	if value, err := n.sysctls.Read(callIP6Tables); err == nil && value != "1" {
		if err := n.sysctls.Set(callIP6Tables, "1"); err != nil {
			log.Info("bridged IPv6 packets are not seen by the packet filter: Services may not work", "reason", err.Error())
		}
	}
	return nil
}

// SetUpPod returns the result of the previous plugin in the chain (CNI specification 1.1.0,
// "ADD"), or an empty result if there is none.
func (n *Noop) SetUpPod(_ context.Context, r cniproto.Request) ([]byte, error) {
	var config struct {
		PrevResult json.RawMessage `json:"prevResult"`
	}
	if err := json.Unmarshal(r.Config, &config); err != nil {
		return nil, &cniproto.Error{Code: cniproto.CodeDecode, Msg: fmt.Sprintf("network configuration: %v", err)}
	}
	if len(config.PrevResult) > 0 && string(config.PrevResult) != "null" {
		return config.PrevResult, nil
	}
	return fmt.Appendf(nil, `{"cniVersion":%q,"interfaces":[],"ips":[],"dns":{}}`, r.CNIVersion()), nil
}

// TearDownPod does nothing.
func (n *Noop) TearDownPod(context.Context, cniproto.Request) error { return nil }

// Status returns nil.
func (n *Noop) Status() error { return nil }
