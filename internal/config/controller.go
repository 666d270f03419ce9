package config

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Controller is the configuration of fairlead-controller.
type Controller struct {
	// Kubeconfig is a path; empty uses the pod's service account.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// NodeSelector chooses, by label, the nodes whose pods Fairlead serves.
	// Empty serves all. Moving from another network to Fairlead goes node by
	// node with it.
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
	// DefaultNetwork gives every pod its default interface.
	DefaultNetwork DefaultNetwork `json:"defaultNetwork"`
	// MultiVIFSources are asked, in order, for further interfaces: "npwg" serves
	// the pod annotation k8s.v1.cni.cncf.io/networks. Empty asks none.
	MultiVIFSources []string `json:"multiVIFSources,omitempty"`
	// NetworkPoolsPerNamespace is how many IPPools are written for the networks of one
	// namespace that have the configuration of whereabouts, one for each range; 1 to
	// 4096, default 64.
	NetworkPoolsPerNamespace int `json:"networkPoolsPerNamespace,omitempty"`
	// WhereaboutsConf is the path of a flat file of whereabouts
	// (whereabouts.conf): what the networks with its configuration leave open.
	// Empty leaves it at whereabouts' own defaults.
	WhereaboutsConf string `json:"whereaboutsConf,omitempty"`
	// Workers is how many writes for pods, of their records and of address blocks,
	// are under way at once; default 80, for which one connection has room beside
	// the watches: an API server answers 100 requests at once on it. More pods than
	// that are worked on, and wait for their addresses or their turn.
	Workers int `json:"workers,omitempty"`
	// GCInterval is how long between two passes of garbage collection;
	// default 5m, at least 10s.
	GCInterval metav1.Duration `json:"gcInterval,omitempty"`
	// NodeGrace is how long a Node must have been deleted until the addresses
	// of its pods are given back without its word; default 5m, at least 10s.
	NodeGrace metav1.Duration `json:"nodeGrace,omitempty"`
	// LeaderElection among replicas.
	LeaderElection LeaderElection `json:"leaderElection"`
	// UnderlayCIDRs are the networks, in CIDR form, at most 16, in which the nodes'
	// own addresses are. Empty, the default, takes those of the Node objects
	// (InternalIP and ExternalIP). Where nodes reach each other by addresses that
	// their Nodes do not have, as those of a second network card, their networks are
	// named here. With such a list an address outside of it is not used, whatever a
	// Node says.
	UnderlayCIDRs []string `json:"underlayCIDRs,omitempty"`
	// MetricsAddress serves /metrics, /healthz and /readyz, to whoever reaches it;
	// default "127.0.0.1:9470". "0" switches it off.
	MetricsAddress string `json:"metricsAddress,omitempty"`
}

// DefaultNetwork is where default interfaces come from.
type DefaultNetwork struct {
	// Driver is "native", or "none" when the default network is somebody else's
	// and Fairlead serves further networks only.
	Driver string `json:"driver"`
	// Binding is "bridge" (default), or "addressOnly" when another CNI plugin
	// makes the interface and has its addresses from fairlead-ipam.
	Binding string `json:"binding,omitempty"`
	// Pools are the names of the IPPools of the native driver, 1 to 16, default
	// "default". A pod draws from the first that serves it and has addresses
	// left. They may be written later than the controller starts.
	Pools []string `json:"pools"`
	// Bridge on each node; default "fairlead0".
	Bridge string `json:"bridge,omitempty"`
}

// LeaderElection is how replicas choose the one that works.
type LeaderElection struct {
	// Namespace of the Lease; default "fairlead-system".
	Namespace string `json:"namespace,omitempty"`
	// LeaseDuration is how long standbys respect a lease that is not renewed, in
	// whole seconds; default 20s. That of a leader whose process has ended is taken
	// sooner: see Port.
	LeaseDuration metav1.Duration `json:"leaseDuration,omitempty"`
	// RenewDeadline is how long a leader tries to renew before it steps down and
	// stands by; default 15s, less than LeaseDuration.
	RenewDeadline metav1.Duration `json:"renewDeadline,omitempty"`
	// RetryPeriod is how often renewal and take-over are tried; default 1s, less
	// than RenewDeadline.
	RetryPeriod metav1.Duration `json:"retryPeriod,omitempty"`
	// Port is where standbys keep a connection to the leader, by whose end they
	// learn that it was killed; default 9472, 0 to 65535. 0 is any that is free,
	// as is taken while another process has the port.
	Port int `json:"port"`
}

// What DefaultNetwork and MultiVIFSources choose from.
const (
	DriverNative       = "native"
	DriverNone         = "none"
	BindingBridge      = "bridge"
	BindingAddressOnly = "addressOnly"
	SourceNPWG         = "npwg"
)

// DefaultController returns the defaults.
func DefaultController() Controller {
	return Controller{
		DefaultNetwork: DefaultNetwork{Driver: DriverNative, Binding: BindingBridge, Pools: []string{"default"}, Bridge: "fairlead0"},
		Workers:        80,
		GCInterval:     metav1.Duration{Duration: 5 * time.Minute},
		NodeGrace:      metav1.Duration{Duration: 5 * time.Minute},
		MetricsAddress: "127.0.0.1:9470",
		LeaderElection: LeaderElection{
			Namespace:     "fairlead-system",
			LeaseDuration: metav1.Duration{Duration: 20 * time.Second},
			RenewDeadline: metav1.Duration{Duration: 15 * time.Second},
			RetryPeriod:   metav1.Duration{Duration: time.Second},
			Port:          9472,
		},
		NetworkPoolsPerNamespace: 64,
	}
}

// maxPools is how many pools a network may have.
const maxPools = 16

// maxUnderlay is how many networks nodes may have addresses in.
const maxUnderlay = 16

var (
	objectName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)
	linkName   = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,14}$`)
)

// Validate returns everything that is wrong, each with its field path. The drivers are
// those that there are.
func (c *Controller) Validate(drivers []string) error {
	v := &invalid{}
	v.check(c.DefaultNetwork.Driver == DriverNone || slices.Contains(drivers, c.DefaultNetwork.Driver), "defaultNetwork.driver", c.DefaultNetwork.Driver,
		`must be "`+strings.Join(drivers, `", "`)+`" or "none"`)
	v.check(slices.Contains([]string{BindingBridge, BindingAddressOnly}, c.DefaultNetwork.Binding), "defaultNetwork.binding", c.DefaultNetwork.Binding, `must be "bridge" or "addressOnly"`)
	pools := c.DefaultNetwork.Pools
	v.check(len(pools) >= 1 && len(pools) <= maxPools, "defaultNetwork.pools", pools, "must name 1 to 16 IPPools")
	for i, name := range pools {
		field := fmt.Sprintf("defaultNetwork.pools[%d]", i)
		v.check(objectName.MatchString(name), field, name, "must be the name of an IPPool")
		v.check(!slices.Contains(pools[:i], name), field, name, "must be named once")
	}
	v.check(linkName.MatchString(c.DefaultNetwork.Bridge), "defaultNetwork.bridge", c.DefaultNetwork.Bridge, "must be an interface name of 1 to 15 characters")
	for i, name := range c.MultiVIFSources {
		field := fmt.Sprintf("multiVIFSources[%d]", i)
		v.check(name == SourceNPWG, field, name, `must be "npwg"`)
		v.check(!slices.Contains(c.MultiVIFSources[:i], name), field, name, "must be named once")
	}
	v.check(c.DefaultNetwork.Driver != DriverNone || len(c.MultiVIFSources) > 0, "multiVIFSources", c.MultiVIFSources, `must name a source: with defaultNetwork.driver "none" there is nothing else to serve`)
	v.check(c.WhereaboutsConf == "" || filepath.IsAbs(c.WhereaboutsConf), "whereaboutsConf", c.WhereaboutsConf, "must be an absolute path, or empty")
	v.check(c.NetworkPoolsPerNamespace >= 1 && c.NetworkPoolsPerNamespace <= 4096, "networkPoolsPerNamespace", c.NetworkPoolsPerNamespace, "must be between 1 and 4096")
	v.check(c.Workers >= 1 && c.Workers <= 1024, "workers", c.Workers, "must be between 1 and 1024")
	v.check(c.GCInterval.Duration >= 10*time.Second, "gcInterval", c.GCInterval.Duration, "must be at least 10s")
	v.check(c.NodeGrace.Duration >= 10*time.Second, "nodeGrace", c.NodeGrace.Duration, "must be at least 10s")
	v.check(len(c.UnderlayCIDRs) <= maxUnderlay, "underlayCIDRs", len(c.UnderlayCIDRs), "must be at most 16 networks")
	for i, s := range c.UnderlayCIDRs {
		p, err := netip.ParsePrefix(s)
		v.check(err == nil && !p.Addr().Is4In6() && p == p.Masked(), fmt.Sprintf("underlayCIDRs[%d]", i), s, "must be a network in CIDR form, without host bits")
	}
	le := c.LeaderElection
	v.check(objectName.MatchString(le.Namespace), "leaderElection.namespace", le.Namespace, "must be a namespace")
	v.check(le.LeaseDuration.Duration >= time.Second && le.LeaseDuration.Duration%time.Second == 0, "leaderElection.leaseDuration", le.LeaseDuration.Duration, "must be whole seconds, at least 1s")
	v.check(le.RetryPeriod.Duration > 0, "leaderElection.retryPeriod", le.RetryPeriod.Duration, "must be positive")
	v.check(le.RenewDeadline.Duration > le.RetryPeriod.Duration*6/5, "leaderElection.renewDeadline", le.RenewDeadline.Duration, "must be more than 1.2 times retryPeriod")
	v.check(le.LeaseDuration.Duration > le.RenewDeadline.Duration, "leaderElection.leaseDuration", le.LeaseDuration.Duration, "must be more than renewDeadline")
	v.check(le.Port >= 0 && le.Port <= 65535, "leaderElection.port", le.Port, "must be between 0 and 65535")
	if _, err := c.Nodes(); err != nil {
		v.check(false, "nodeSelector", c.NodeSelector.String(), err.Error())
	}
	return v.err()
}

// WhereaboutsFlatFile reads the file that WhereaboutsConf names; it is empty when
// none is named.
func (c *Controller) WhereaboutsFlatFile() ([]byte, error) {
	if c.WhereaboutsConf == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(c.WhereaboutsConf)
	if err != nil {
		return nil, fmt.Errorf("whereaboutsConf: %w", err)
	}
	if !json.Valid(raw) {
		return nil, fmt.Errorf("whereaboutsConf: %s: must be a JSON object", c.WhereaboutsConf)
	}
	return raw, nil
}

// Underlay is UnderlayCIDRs, parsed.
func (c *Controller) Underlay() ([]netip.Prefix, error) {
	networks := make([]netip.Prefix, len(c.UnderlayCIDRs))
	for i, s := range c.UnderlayCIDRs {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("underlayCIDRs[%d]: %w", i, err)
		}
		networks[i] = p
	}
	return networks, nil
}

// Nodes returns the selector of the nodes that Fairlead serves.
func (c *Controller) Nodes() (labels.Selector, error) {
	if c.NodeSelector == nil {
		return labels.Everything(), nil
	}
	return metav1.LabelSelectorAsSelector(c.NodeSelector)
}
