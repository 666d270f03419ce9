package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"fairlead.dev/fairlead/test/podrunner/sandbox"
)

const (
	// defaultInterface is the interface whose addresses are the pod's.
	defaultInterface = "eth0"

	// The limits of kubelet's calls to containerd.
	addTimeout = 4 * time.Minute
	delTimeout = 2 * time.Minute
)

// network executes CNI plugins through libcni as containerd does.
type network struct {
	conf     *conf
	binDir   string
	cacheDir string
	store    *sandbox.Store
}

// add gives a sandbox its network and returns the addresses of eth0, the first
// IPv4 address first.
func (n *network) add(ctx context.Context, box sandbox.Record) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, addTimeout)
	defer cancel()
	var ips []string
	err := n.conf.use(func(list *libcni.NetworkConfigList) error {
		cni, watch := n.newCNI()
		result, err := cni.AddNetworkList(ctx, list, runtimeConf(box, box.NetnsPath))
		err = errors.Join(err, n.log(box, "ADD", box.NetnsPath, watch, err))
		if err != nil {
			return err
		}
		current, err := types100.NewResultFromResult(result)
		if err != nil {
			return fmt.Errorf("read the plugin's result: %w", err)
		}
		ips, err = podIPs(current)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("failed to setup network for sandbox %q: %w", box.ID, err)
	}
	return ips, nil
}

// del removes a sandbox's network; netns is empty if the namespace is gone. Unlike
// containerd it never takes an error for success, whatever its text.
func (n *network) del(ctx context.Context, box sandbox.Record, netns string) error {
	ctx, cancel := context.WithTimeout(ctx, delTimeout)
	defer cancel()
	err := n.conf.use(func(list *libcni.NetworkConfigList) error {
		cni, watch := n.newCNI()
		err := cni.DelNetworkList(ctx, list, runtimeConf(box, netns))
		return errors.Join(err, n.log(box, "DEL", netns, watch, err))
	})
	if err != nil {
		return fmt.Errorf("failed to destroy network for sandbox %q: %w", box.ID, err)
	}
	return nil
}

// status returns nil if the plugins could serve an ADD.
func (n *network) status(ctx context.Context) error {
	return n.conf.use(func(list *libcni.NetworkConfigList) error {
		cni, _ := n.newCNI()
		return cni.GetStatusNetworkList(ctx, list)
	})
}

// newCNI returns a libcni for one call, with a stopwatch for its plugins.
func (n *network) newCNI() (*libcni.CNIConfig, *stopwatch) {
	watch := &stopwatch{RawExec: invoke.RawExec{Stderr: os.Stderr}}
	return libcni.NewCNIConfigWithCacheDir([]string{n.binDir}, n.cacheDir, watch), watch
}

func (n *network) log(box sandbox.Record, verb, netns string, watch *stopwatch, err error) error {
	op := sandbox.Op{
		Pod:     box.Namespace + "/" + box.Pod,
		UID:     box.UID,
		Sandbox: box.ID,
		Verb:    verb,
		Netns:   netns,
		MS:      float64(watch.total.Microseconds()) / 1000,
	}
	if err != nil {
		op.Error = err.Error()
	}
	return n.store.Log(op)
}

// stopwatch executes plugins and measures the time from the start of the process to its
// result.
type stopwatch struct {
	invoke.RawExec
	version.PluginDecoder
	total time.Duration
}

// ExecPlugin is part of invoke.Exec.
func (s *stopwatch) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	start := time.Now()
	defer func() { s.total += time.Since(start) }()
	return s.RawExec.ExecPlugin(ctx, path, stdin, environ)
}

func runtimeConf(box sandbox.Record, netns string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: box.ID,
		NetNS:       netns,
		IfName:      defaultInterface,
		Args: [][2]string{
			{"IgnoreUnknown", "1"},
			{"K8S_POD_NAMESPACE", box.Namespace},
			{"K8S_POD_NAME", box.Pod},
			{"K8S_POD_INFRA_CONTAINER_ID", box.ID},
			{"K8S_POD_UID", string(box.UID)},
		},
		CapabilityArgs: box.Capabilities,
	}
}

// podIPs returns the addresses of eth0: those that name it and those that name no
// interface. An IPv4 address comes first if there is one; the others keep their order.
func podIPs(result *types100.Result) ([]string, error) {
	var ips []string
	primary := -1
	for _, ip := range result.IPs {
		if ip.Interface != nil {
			i := *ip.Interface
			if i < 0 || i >= len(result.Interfaces) {
				return nil, fmt.Errorf("invalid result: address %v has interface %d of %d", ip.Address.IP, i, len(result.Interfaces))
			}
			if result.Interfaces[i].Name != defaultInterface {
				continue
			}
		}
		addr, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			return nil, fmt.Errorf("invalid result: address %v", ip.Address)
		}
		if addr = addr.Unmap(); addr.Is4() && primary < 0 {
			primary = len(ips)
		}
		ips = append(ips, addr.String())
	}
	if len(ips) == 0 {
		return nil, errors.New("failed to find network info: the result has no address of " + defaultInterface)
	}
	if primary > 0 {
		first := ips[primary]
		copy(ips[1:], ips[:primary])
		ips[0] = first
	}
	return ips, nil
}
