package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestControllerDefaultsAreValid(t *testing.T) {
	c := DefaultController()
	if err := c.Validate([]string{DriverNative}); err != nil {
		t.Fatal(err)
	}
}

func TestControllerValidateNamesEveryField(t *testing.T) {
	c := DefaultController()
	c.DefaultNetwork = DefaultNetwork{Driver: "macvtap", Binding: "tap", Pools: []string{"pods", "No_Pool", "pods"}}
	c.MultiVIFSources = []string{"npwg", "npwg", "noop"}
	c.WhereaboutsConf = "whereabouts.conf"
	c.Workers = 0
	c.UnderlayCIDRs = append(slices.Repeat([]string{"192.0.2.0/24"}, 15), "192.0.2.1/24", "fd00::1")
	c.GCInterval = metav1.Duration{}
	c.NodeGrace = metav1.Duration{Duration: time.Second}
	c.LeaderElection.RenewDeadline = c.LeaderElection.LeaseDuration
	c.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"bad key!": "x"}}
	c.Networks = Networks{
		AttachedBy: "multus", SharedNamespaces: []string{"Not One"},
		Open: []Opening{{NamespaceSelector: *c.NodeSelector, Bridges: []string{""}, Addresses: []string{"10.9.0.1/24"}, Parents: []string{"["}, Devices: slices.Repeat([]string{"ens1"}, 65)}},
	}
	err := c.Validate([]string{DriverNative})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		`defaultNetwork.driver: "macvtap"`, `defaultNetwork.pools[1]: "No_Pool"`, `defaultNetwork.pools[2]: "pods": must be named once`,
		`defaultNetwork.binding: "tap"`, `multiVIFSources[1]: "npwg": must be named once`, `multiVIFSources[2]: "noop": must be "npwg" or "additional-subnets" or "sriov"`, `whereaboutsConf: "whereabouts.conf"`, "workers: 0", "gcInterval: 0s", "nodeGrace: 1s", "underlayCIDRs: 17: must be at most 16", `underlayCIDRs[15]: "192.0.2.1/24"`, `underlayCIDRs[16]: "fd00::1"`, "leaderElection.leaseDuration: 15s", "nodeSelector:",
		`networks.attachedBy: "multus": must be "Multus" or "Fairlead"`, `networks.sharedNamespaces[0]: "Not One"`, "networks.open[0].namespaceSelector:", `networks.open[0].bridges[0]: ""`, `networks.open[0].addresses[0]: "10.9.0.1/24"`, `networks.open[0].parents[0]: "["`,
		"networks.open[0].devices: 65: must be at most 64",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q:\n%v", want, err)
		}
	}
}

// whereabouts#303: after a reboot it waited for ever for a lock without a namespace.
// Fairlead does not start in this case.
func TestWhereabouts303NoNamespace(t *testing.T) {
	for _, namespace := range []string{"", "Not One"} {
		path := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(path, fmt.Appendf(nil, "leaderElection: {namespace: %q}\n", namespace), 0o600); err != nil {
			t.Fatal(err)
		}
		c := DefaultController()
		want := fmt.Sprintf("leaderElection.namespace: %q", namespace)
		if err := Load(path, &c, func() error { return c.Validate([]string{DriverNative}) }); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("namespace %q: %v", namespace, err)
		}
	}
}

func TestNothingToServe(t *testing.T) {
	c := DefaultController()
	c.DefaultNetwork.Driver = DriverNone
	if err := c.Validate([]string{DriverNative}); err == nil || !strings.Contains(err.Error(), "multiVIFSources: []: must name a source") {
		t.Errorf("error %v", err)
	}
	c.MultiVIFSources = []string{SourceNPWG}
	if err := c.Validate([]string{DriverNative}); err != nil {
		t.Error(err)
	}
}

func TestSRIOVNeedsNetworks(t *testing.T) {
	for _, tc := range []struct {
		sources []string
		valid   bool
	}{{[]string{SourceSRIOV}, false}, {[]string{SourceSRIOV, SourceNPWG}, true}} {
		c := DefaultController()
		c.MultiVIFSources = tc.sources
		if err := c.Validate([]string{DriverNative}); (err == nil) != tc.valid || err != nil && !strings.Contains(err.Error(), `must name "npwg" beside "sriov"`) {
			t.Errorf("%v: error %v", tc.sources, err)
		}
	}
}

// Additional pools need a default network of Fairlead's own.
func TestAdditionalSubnetsNeedADefaultNetwork(t *testing.T) {
	for _, tc := range []struct {
		driver, binding string
		valid           bool
	}{{DriverNative, BindingRouted, true}, {DriverNative, BindingAddressOnly, false}, {DriverNone, BindingRouted, false}} {
		c := DefaultController()
		c.MultiVIFSources = []string{SourceNPWG, SourceSubnets}
		c.DefaultNetwork.Driver, c.DefaultNetwork.Binding = tc.driver, tc.binding
		err := c.Validate([]string{DriverNative})
		if (err == nil) != tc.valid || err != nil && !strings.Contains(err.Error(), `must not name "additional-subnets"`) {
			t.Errorf("driver %s, binding %s: error %v", tc.driver, tc.binding, err)
		}
	}
}

func TestWhereFairleadAttaches(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(c *Controller)
		fails  string
	}{
		{"on our own default network", func(*Controller) {}, ""},
		{"on another plugin's", func(c *Controller) { c.DefaultNetwork.Network = "kube-system/cilium" }, ""},
		{"where another program has the default network", func(c *Controller) { c.DefaultNetwork.Driver = DriverNone }, "networks.attachedBy"},
		{"where another plugin makes the default interface", func(c *Controller) { c.DefaultNetwork.Binding = BindingAddressOnly }, "networks.attachedBy"},
		{"a name without a namespace", func(c *Controller) { c.DefaultNetwork.Network = "cilium" }, `defaultNetwork.network: "cilium"`},
		{"a network where Multus attaches", func(c *Controller) {
			c.DefaultNetwork.Network, c.Networks.AttachedBy = "kube-system/cilium", AttachedByMultus
		}, "defaultNetwork.network"},
		{"a network that is not read", func(c *Controller) { c.DefaultNetwork.Network, c.MultiVIFSources = "kube-system/cilium", nil }, "defaultNetwork.network"},
	} {
		c := DefaultController()
		c.MultiVIFSources, c.Networks.AttachedBy = []string{SourceNPWG}, AttachedByFairlead
		tc.change(&c)
		err := c.Validate([]string{DriverNative})
		if (err == nil) != (tc.fails == "") || err != nil && !strings.Contains(err.Error(), tc.fails) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

func TestWhereaboutsFlatFile(t *testing.T) {
	c := DefaultController()
	if raw, err := c.WhereaboutsFlatFile(); raw != nil || err != nil {
		t.Errorf("none: %s, %v", raw, err)
	}
	c.WhereaboutsConf = filepath.Join(t.TempDir(), "whereabouts.conf")
	for text, want := range map[string]string{`{"gateway":"10.0.0.1"}`: "", "{": "must be a JSON object"} {
		if err := os.WriteFile(c.WhereaboutsConf, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		raw, err := c.WhereaboutsFlatFile()
		if want == "" && (err != nil || string(raw) != text) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %s, %v", text, raw, err)
		}
	}
}

func TestNumberOfPools(t *testing.T) {
	names := func(n int) []string {
		out := make([]string, n)
		for i := range out {
			out[i] = fmt.Sprintf("pool-%d", i)
		}
		return out
	}
	for n, want := range map[int]bool{0: false, 1: true, 16: true, 17: false} {
		c := DefaultController()
		c.DefaultNetwork.Pools = names(n)
		if err := c.Validate([]string{DriverNative}); (err == nil) != want {
			t.Errorf("%d pools: %v", n, err)
		}
	}
}

func TestLoad(t *testing.T) {
	cases := []struct{ name, text, wantErr, wantPools string }{
		{name: "a field over the default", text: "defaultNetwork: {pools: [pods, overflow]}", wantPools: "pods overflow"},
		{name: "an empty file", text: "", wantPools: "default"},
		{name: "an unknown field", text: "defaultNetwrok: {}", wantErr: `unknown field "defaultNetwrok"`},
		{name: "unknown fields and a wrong value", text: "defaultNetwork: {bridge: fairlead0, binding: bridge}\nx: 1", wantErr: `unknown field "defaultNetwork.bridge"` + "\n" + `unknown field "x"` + "\n" + `defaultNetwork.binding: "bridge": must be "routed" or "addressOnly"`},
		{name: "a repeated field", text: "workers: 1\nworkers: 2", wantErr: "already set"},
		{name: "a wrong type", text: "workers: many", wantErr: "workers"},
		{name: "not YAML", text: "{", wantErr: "yaml"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "c.yaml")
			if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			c := DefaultController()
			err := Load(path, &c, func() error { return c.Validate([]string{DriverNative}) })
			switch {
			case tc.wantErr == "" && err != nil:
				t.Fatal(err)
			case tc.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tc.wantErr) || !strings.Contains(err.Error(), path)):
				t.Fatalf("want an error that says %q and the path, got %v", tc.wantErr, err)
			case tc.wantErr == "" && strings.Join(c.DefaultNetwork.Pools, " ") != tc.wantPools:
				t.Fatalf("pools %q, want %q", c.DefaultNetwork.Pools, tc.wantPools)
			}
		})
	}
}

// Two replicas may have the same host name and process ID.
func TestIdentity(t *testing.T) {
	first, err := Identity()
	if err != nil {
		t.Fatal(err)
	}
	second, err := Identity()
	if err != nil || first == second {
		t.Errorf("%q and %q, %v", first, second, err)
	}
	host, err := os.Hostname()
	if err != nil || !strings.HasPrefix(first, host+"_") {
		t.Errorf("%q does not say that it is of host %q (%v)", first, host, err)
	}
}

func TestOpenStackValidateNamesEveryField(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Controller)
		want   []string
	}{
		{"nothing", func(*Controller) {}, nil},
		{"a further network", func(c *Controller) { c.OpenStack.Cluster = "east" }, nil},
		{"a default network", func(c *Controller) {
			c.DefaultNetwork.Driver, c.OpenStack.Cluster, c.OpenStack.Ports.Network = DriverNeutron, "east", "pods"
		}, nil},
		{"networks of namespaces", func(c *Controller) {
			c.DefaultNetwork.Driver, c.OpenStack.Cluster, c.OpenStack.Ports.Network = DriverNeutron, "east", "pods"
			c.OpenStack.NamespaceNetworks = &NamespaceNetworks{SubnetPools: []string{"v4", "v6"}, Router: "gateway"}
		}, nil},
		{"networks of namespaces without anything", func(c *Controller) {
			c.OpenStack.NamespaceNetworks = &NamespaceNetworks{NamespaceSelector: metav1.LabelSelector{MatchLabels: map[string]string{"bad key!": "x"}}}
		}, []string{
			"openstack.namespaceNetworks: \"native\": must be absent unless", "openstack.namespaceNetworks.namespaceSelector:",
			"openstack.namespaceNetworks.subnetPools: []: must be one subnet pool of each family", "openstack.namespaceNetworks.router: \"\": must be an ID or a name",
		}},
		{"too many subnet pools", func(c *Controller) {
			c.DefaultNetwork.Driver, c.OpenStack.Cluster, c.OpenStack.Ports.Network = DriverNeutron, "east", "pods"
			c.OpenStack.NamespaceNetworks = &NamespaceNetworks{SubnetPools: []string{"v4", "v6", " "}, Router: "gateway"}
		}, []string{"openstack.namespaceNetworks.subnetPools:", "openstack.namespaceNetworks.subnetPools[2]: \" \""}},
		{"pools", func(c *Controller) { c.OpenStack.Cluster, c.OpenStack.Ports.Pools.Low = "east", 16 }, nil},
		{"pools without OpenStack", func(c *Controller) { c.OpenStack.Ports.Pools.Low = 4 }, []string{`openstack.cluster: "": must not be empty if`}},
		{"no cluster", func(c *Controller) {
			c.DefaultNetwork.Driver, c.OpenStack.Open = DriverNeutron, []CloudOpening{{}}
		}, []string{"openstack.cluster: \"\": must not be empty if", "openstack.ports.network: \"\": must name a network"}},
		{"another plugin", func(c *Controller) {
			c.DefaultNetwork.Driver, c.DefaultNetwork.Binding = DriverNeutron, BindingAddressOnly
			c.OpenStack.Cluster, c.OpenStack.Ports.Network = "east", "pods"
		}, []string{"defaultNetwork.binding: \"addressOnly\""}},
		{"all", func(c *Controller) {
			c.OpenStack = OpenStack{
				Cluster: "East", CloudsFile: "clouds.yaml", Project: "my project", HostLabel: "a b", NeutronPort: "vlan",
				Ports: Ports{Network: " pods", Subnets: []string{""}, SecurityGroups: slices.Repeat([]string{"g"}, 17), QoSPolicy: "a\nb", Pools: PortPools{Low: 65, High: 3, Batch: 65}, NodeSubnets: append(slices.Repeat([]NodeSubnets{{Subnets: []string{"a"}}}, 64), NodeSubnets{NodeSelector: metav1.LabelSelector{MatchLabels: map[string]string{"bad key!": "x"}}})},
				Open: append(slices.Repeat([]CloudOpening{{}}, 64), CloudOpening{
					NamespaceSelector: metav1.LabelSelector{MatchLabels: map[string]string{"bad key!": "x"}},
					Networks:          []string{"["}, Subnets: []string{""}, SecurityGroups: slices.Repeat([]string{"g"}, 65), QoSPolicies: []string{" q"}, Projects: []string{"[a"},
				}),
			}
		}, []string{
			"openstack.cluster: \"East\"", "openstack.cloudsFile: \"clouds.yaml\"", "openstack.cloud: \"\"", "openstack.project: \"my project\"", "openstack.hostLabel: \"a b\"", "openstack.neutronPort: \"vlan\"",
			"openstack.ports.network: \" pods\"", "openstack.ports.subnets[0]: \"\"", "openstack.ports.securityGroups: 17: must be at most 16", "must be empty with portSecurity false",
			"openstack.ports.nodeSubnets: 65: must be at most 64", "openstack.ports.nodeSubnets[64].nodeSelector:", "openstack.ports.nodeSubnets[64].subnets: []: must name at least one",
			"openstack.ports.pools.low: 65: must be 0 to 64", "openstack.ports.pools.high: 3: must be low to 64", "openstack.ports.pools.batch: 65: must be 1 to 64",
			"openstack.ports.qosPolicy:", "openstack.open: 65: must be at most 64", "openstack.open[64].namespaceSelector:", "openstack.open[64].networks[0]: \"[\"",
			"openstack.open[64].subnets[0]: \"\"", "openstack.open[64].securityGroups: 65: must be at most 64", "openstack.open[64].qosPolicies[0]: \" q\"", "openstack.open[64].projects[0]: \"[a\"",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := DefaultController()
			tc.change(&c)
			err := c.Validate([]string{DriverNative, DriverNeutron})
			if (err == nil) != (len(tc.want) == 0) {
				t.Fatalf("error %v", err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not say %q:\n%v", want, err)
				}
			}
		})
	}
}
