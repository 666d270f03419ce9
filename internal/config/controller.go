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
	// NodeSelector selects, by label, the nodes whose pods Fairlead serves; empty selects
	// all. It allows a migration from another network node by node.
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
	// DefaultNetwork gives every pod its default interface.
	DefaultNetwork DefaultNetwork `json:"defaultNetwork"`
	// MultiVIFSources are the sources of further interfaces, in order: "npwg" reads the
	// pod annotation k8s.v1.cni.cncf.io/networks, "additional-subnets" reads
	// fairlead.dev/additional-pools and openstack.org/kuryr-additional-subnets, "sriov" the
	// devices that containers request; it needs "npwg". Empty means no source.
	MultiVIFSources []string `json:"multiVIFSources,omitempty"`
	// Networks configures the networks of NetworkAttachmentDefinitions, for the source
	// "npwg".
	Networks Networks `json:"networks"`
	// NetworkPoolsPerNamespace is the largest number of IPPools that are created for the
	// networks of one namespace with a configuration of whereabouts, one for each range;
	// 1 to 4096, default 64.
	NetworkPoolsPerNamespace int `json:"networkPoolsPerNamespace,omitempty"`
	// WhereaboutsConf is the path of a flat file of whereabouts (whereabouts.conf) with
	// the options that networks do not set. If empty, whereabouts' own defaults apply.
	WhereaboutsConf string `json:"whereaboutsConf,omitempty"`
	// Workers is the number of concurrent writes for pods, of records and of address
	// blocks; 1 to 1024, default 80. That leaves room for the watches on one connection,
	// on which an API server answers 100 requests concurrently. More pods than that are
	// in progress, and wait for their addresses or their turn.
	Workers int `json:"workers,omitempty"`
	// GCInterval is the time between two passes of garbage collection; default 5m, at
	// least 10s.
	GCInterval metav1.Duration `json:"gcInterval,omitempty"`
	// NodeGrace is the time after the deletion of a Node until the addresses of its pods
	// are released without the node's confirmation; default 5m, at least 10s.
	NodeGrace metav1.Duration `json:"nodeGrace,omitempty"`
	// OpenStack configures the use of an OpenStack cloud. Without openstack.cluster, the
	// default, there is none.
	OpenStack OpenStack `json:"openstack"`
	// LeaderElection configures the election among replicas.
	LeaderElection LeaderElection `json:"leaderElection"`
	// UnderlayCIDRs are the networks of the nodes' own addresses, at most 16, in CIDR
	// form. If empty, the default, the addresses are those of the Node objects
	// (InternalIP and ExternalIP). If nodes reach each other by addresses that their
	// Nodes do not have, as those of a second network card, list the networks of these
	// addresses here. With such a list an address outside of it is not used, even if a
	// Node has it.
	UnderlayCIDRs []string `json:"underlayCIDRs,omitempty"`
	// MetricsAddress is the address that serves /metrics, /healthz and /readyz, without
	// authentication; default "127.0.0.1:9470". "0" turns it off.
	MetricsAddress string `json:"metricsAddress,omitempty"`
}

// DefaultNetwork configures the pods' default interfaces.
type DefaultNetwork struct {
	// Driver is "native" (default), "neutron" for ports of OpenStack, or "none" if another
	// plugin provides the default network and Fairlead serves further networks only.
	Driver string `json:"driver"`
	// Binding is "routed" (default), or "addressOnly" if another CNI plugin makes the
	// interface and gets its addresses from fairlead-ipam.
	Binding string `json:"binding,omitempty"`
	// Pools are the names of the IPPools of the native driver, 1 to 16, default
	// "default". A pod gets its addresses from the first pool that serves it and has free
	// addresses. The pools may be created after the controller starts.
	Pools []string `json:"pools"`
	// Network is the "<namespace>/<name>" of a NetworkAttachmentDefinition. Fairlead makes
	// the default interfaces on it, or executes its plugins, as those of Calico or Cilium.
	// Empty, the default, gives pods a routed interface with addresses of Pools. It
	// needs networks.attachedBy Fairlead.
	Network string `json:"network,omitempty"`
}

// Networks configures the networks of NetworkAttachmentDefinitions.
type Networks struct {
	// AttachedBy is the program that makes the interfaces: "Multus" (default), or another
	// program that the runtime executes, with addresses from Fairlead; or "Fairlead". The
	// label fairlead.dev/networks-attached-by of a Node takes precedence, for a change
	// from one to the other node by node.
	AttachedBy string `json:"attachedBy,omitempty"`
	// Isolated confines pods to networks of their own namespace and of SharedNamespaces.
	Isolated bool `json:"isolated,omitempty"`
	// SharedNamespaces are the namespaces whose networks all pods may use if Isolated is
	// true, at most 64.
	SharedNamespaces []string `json:"sharedNamespaces,omitempty"`
	// Open lists the parts of the nodes that networks may use if Fairlead attaches them,
	// by namespace, at most 64 entries. Networks of the controller's own namespace
	// (leaderElection.namespace) may use all.
	Open []Opening `json:"open,omitempty"`
}

// Opening opens parts of the nodes to networks of some namespaces. Each part but an
// address is a name, or a pattern with * for any characters (path.Match).
type Opening struct {
	// NamespaceSelector selects the namespaces by label; empty selects all.
	NamespaceSelector metav1.LabelSelector `json:"namespaceSelector"`
	// Bridges are the Linux bridges that their networks may use, or create.
	Bridges []string `json:"bridges,omitempty"`
	// Addresses are the networks, in CIDR form, whose addresses these bridges may get: the
	// node itself has them.
	Addresses []string `json:"addresses,omitempty"`
	// Parents are the links that may get macvlan, ipvlan and VLAN links.
	Parents []string `json:"parents,omitempty"`
	// Devices are the links that may be moved into pods: by name, MAC, kernel path or PCI
	// address, as the networks name them, or by the resource of a device plugin.
	Devices []string `json:"devices,omitempty"`
	// Plugins are the types of CNI plugins that may be executed. A plugin has all rights
	// of the node.
	Plugins []string `json:"plugins,omitempty"`
}

// LeaderElection configures the election of the replica that works.
type LeaderElection struct {
	// Namespace of the Lease; default "fairlead-system".
	Namespace string `json:"namespace,omitempty"`
	// LeaseDuration is how long standbys respect a Lease that is not renewed, in whole
	// seconds; default 15s.
	LeaseDuration metav1.Duration `json:"leaseDuration,omitempty"`
	// RenewDeadline is how long a leader tries to renew before it steps down and
	// stands by; default 10s, less than LeaseDuration.
	RenewDeadline metav1.Duration `json:"renewDeadline,omitempty"`
	// RetryPeriod is the interval of attempts to renew or acquire the Lease; default 2s;
	// RenewDeadline must be more than 1.2 times as long.
	RetryPeriod metav1.Duration `json:"retryPeriod,omitempty"`
}

// Values of DefaultNetwork, MultiVIFSources and Networks.
const (
	DriverNative       = "native"
	DriverNone         = "none"
	BindingRouted      = "routed"
	BindingAddressOnly = "addressOnly"
	SourceNPWG         = "npwg"
	SourceSubnets      = "additional-subnets"
	SourceSRIOV        = "sriov"
	AttachedByMultus   = "Multus"
	AttachedByFairlead = "Fairlead"
)

// sources are the valid elements of MultiVIFSources.
var sources = []string{SourceNPWG, SourceSubnets, SourceSRIOV}

// DefaultController returns the defaults.
func DefaultController() Controller {
	return Controller{
		DefaultNetwork: DefaultNetwork{Driver: DriverNative, Binding: BindingRouted, Pools: []string{"default"}},
		Workers:        80,
		GCInterval:     metav1.Duration{Duration: 5 * time.Minute},
		NodeGrace:      metav1.Duration{Duration: 5 * time.Minute},
		MetricsAddress: "127.0.0.1:9470",
		LeaderElection: LeaderElection{
			Namespace:     "fairlead-system",
			LeaseDuration: metav1.Duration{Duration: 15 * time.Second},
			RenewDeadline: metav1.Duration{Duration: 10 * time.Second},
			RetryPeriod:   metav1.Duration{Duration: 2 * time.Second},
		},
		NetworkPoolsPerNamespace: 64,
		Networks:                 Networks{AttachedBy: AttachedByMultus},
		OpenStack:                OpenStack{CloudsFile: "/etc/fairlead/openstack/clouds.yaml", Cloud: "openstack", NeutronPort: "host", Ports: Ports{PortSecurity: true, Pools: PortPools{High: defaultHigh, Batch: defaultBatch}}},
	}
}

// maxPools is the number of pools that a network may have.
const maxPools = 16

// maxUnderlay is the number of underlay networks.
const maxUnderlay = 16

var (
	objectName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)
	linkName   = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,14}$`)
)

// Validate returns nil if the configuration is valid, otherwise all problems, each with
// its field path. drivers are the names of the drivers of this build.
func (c *Controller) Validate(drivers []string) error {
	v := &invalid{}
	v.check(c.DefaultNetwork.Driver == DriverNone || slices.Contains(drivers, c.DefaultNetwork.Driver), "defaultNetwork.driver", c.DefaultNetwork.Driver,
		`must be "`+strings.Join(drivers, `", "`)+`" or "none"`)
	v.check(slices.Contains([]string{BindingRouted, BindingAddressOnly}, c.DefaultNetwork.Binding), "defaultNetwork.binding", c.DefaultNetwork.Binding, `must be "routed" or "addressOnly"`)
	pools := c.DefaultNetwork.Pools
	v.check(len(pools) >= 1 && len(pools) <= maxPools, "defaultNetwork.pools", pools, "must name 1 to 16 IPPools")
	for i, name := range pools {
		field := fmt.Sprintf("defaultNetwork.pools[%d]", i)
		v.check(objectName.MatchString(name), field, name, "must be the name of an IPPool")
		v.check(!slices.Contains(pools[:i], name), field, name, "must be named once")
	}
	for i, name := range c.MultiVIFSources {
		field := fmt.Sprintf("multiVIFSources[%d]", i)
		v.check(slices.Contains(sources, name), field, name, `must be "`+strings.Join(sources, `" or "`)+`"`)
		v.check(!slices.Contains(c.MultiVIFSources[:i], name), field, name, "must be named once")
	}
	v.check(!slices.Contains(c.MultiVIFSources, SourceSRIOV) || slices.Contains(c.MultiVIFSources, SourceNPWG),
		"multiVIFSources", c.MultiVIFSources, `must name "npwg" beside "sriov", which gives devices to networks`)
	v.check(!slices.Contains(c.MultiVIFSources, SourceSubnets) || c.DefaultNetwork.Driver != DriverNone && c.DefaultNetwork.Binding == BindingRouted,
		"multiVIFSources", c.MultiVIFSources, `must not name "additional-subnets" unless defaultNetwork.driver is a driver and defaultNetwork.binding is "routed": its interfaces are made like the default one`)
	v.check(c.DefaultNetwork.Driver != DriverNone || len(c.MultiVIFSources) > 0, "multiVIFSources", c.MultiVIFSources, `must name a source: with defaultNetwork.driver "none" there is nothing else to serve`)
	c.Networks.validate(v)
	c.checkAttached(v)
	c.validateOpenStack(v)
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
	if _, err := c.Nodes(); err != nil {
		v.check(false, "nodeSelector", c.NodeSelector.String(), err.Error())
	}
	return v.err()
}

// WhereaboutsFlatFile returns the content of the file that WhereaboutsConf names; nil if
// it names none.
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

// Underlay returns UnderlayCIDRs, parsed.
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
