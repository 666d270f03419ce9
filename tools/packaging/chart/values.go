package main

import (
	"fairlead.dev/fairlead/internal/config"
)

// Values are the values of the chart.
type Values struct {
	// Image is the image of both programs.
	Image Image `json:"image"`
	// Controller configures the Deployment of fairlead-controller.
	Controller Controller `json:"controller"`
	// Node configures the DaemonSet of fairlead-node.
	Node Node `json:"node"`
	// DefaultPool configures the IPPool "default", which the default network draws from.
	DefaultPool DefaultPool `json:"defaultPool"`
	// Networks configures further networks of pods.
	Networks Networks `json:"networks"`
	// OpenStack configures the access to an OpenStack cloud.
	OpenStack OpenStack `json:"openstack"`
	// UI configures the live picture of the cluster.
	UI UI `json:"ui"`
}

// Image is the image of both programs.
type Image struct {
	// Repository is the name of the image, with the registry that the nodes pull it from.
	Repository string `json:"repository"`
	// Tag is the tag of the image; empty, the default, is the appVersion of the chart.
	Tag string `json:"tag"`
	// Digest is the digest of the image, as "sha256:..."; it takes precedence over Tag. A tag
	// can be moved, a digest cannot.
	Digest string `json:"digest"`
	// PullSecrets are the names of the Secrets to pull the image with.
	PullSecrets []string `json:"pullSecrets"`
}

// Controller configures the Deployment of fairlead-controller.
type Controller struct {
	// Replicas is the number of controllers, on different nodes. One leads, the others stand
	// by.
	Replicas int `json:"replicas"`
	// Config is the configuration of fairlead-controller. Fields that are not set have the
	// default of the program, which is shown.
	Config config.Controller `json:"config"`
	// Resources are the requests and limits of a controller. Memory follows from the number
	// of pods: some 300 MB at 50,000, and 500 MB while it starts. The default limit is for
	// that many, with room for their annotations and labels.
	Resources map[string]any `json:"resources"`
	// NodeSelector selects, by label, the nodes that controllers may run on. The nodes run
	// Linux in any case.
	NodeSelector map[string]string `json:"nodeSelector"`
	// Tolerations are further tolerations. Controllers tolerate control planes and nodes
	// that wait for their network in any case.
	Tolerations []map[string]any `json:"tolerations"`
}

// Node configures the DaemonSet of fairlead-node.
type Node struct {
	// Config is the configuration of fairlead-node. Fields that are not set have the default
	// of the program, which is shown. The directories and sockets of the configuration are
	// mounted into the pods.
	Config config.Node `json:"config"`
	// Resources are the requests and limits of a daemon.
	Resources map[string]any `json:"resources"`
	// NodeSelector selects, by label, the nodes that get a daemon. The nodes run Linux in any
	// case. A daemon tolerates every taint.
	NodeSelector map[string]string `json:"nodeSelector"`
	// Delegation lets the daemon execute other plugins, and take devices back from namespaces
	// that a process holds: it is privileged, sees the processes of the host, and has the
	// state of the reference plugins.
	Delegation bool `json:"delegation"`
	// OpenVSwitch gives the daemon the directory of Open vSwitch's socket, for ports of
	// OpenStack on the node.
	OpenVSwitch bool `json:"openVSwitch"`
	// Cleanup replaces the daemons by pods that remove everything of Fairlead from their
	// nodes. Pods that still run lose their network. It is the last step before the release
	// is uninstalled.
	Cleanup bool `json:"cleanup"`
}

// DefaultPool configures the IPPool "default".
type DefaultPool struct {
	// Ranges are the addresses of the pool: networks in CIDR form, ranges as
	// "10.0.0.10-10.0.0.99", or single addresses. They are free in your network, and enough
	// for all pods of the cluster. Empty, the default, makes no pool: pods wait until there is
	// one.
	Ranges []string `json:"ranges"`
}

// Networks configures further networks of pods.
type Networks struct {
	// Install installs the CustomResourceDefinition of NetworkAttachmentDefinitions, which
	// Multus installs, too. It stays when the release is uninstalled.
	Install bool `json:"install"`
}

// OpenStack configures the access to an OpenStack cloud.
type OpenStack struct {
	// Secret is the name of a Secret with a clouds.yaml, which the controller reads; empty,
	// the default, mounts none.
	Secret string `json:"secret"`
}

// UI configures the live picture of the cluster.
type UI struct {
	// Enabled runs "fairlead ui" as a Deployment with an account that may only read. It
	// listens on the loopback of its pod: "kubectl port-forward" opens it.
	Enabled bool `json:"enabled"`
}

// defaults returns the default values of the chart. Config has the fields that the templates
// read and those that an operator looks for first; any other has the program's default.
func defaults() map[string]any {
	return map[string]any{
		"image": map[string]any{"repository": "fairlead", "tag": "", "digest": "", "pullSecrets": []any{}},
		"controller": map[string]any{
			"replicas": 2,
			"config":   map[string]any{"defaultNetwork": map[string]any{"pools": []any{"default"}}},
			"resources": map[string]any{
				"requests": map[string]any{"cpu": "100m", "memory": "150Mi"},
				"limits":   map[string]any{"memory": "1Gi"},
			},
			"nodeSelector": map[string]any{},
			"tolerations":  []any{},
		},
		"node": map[string]any{
			"config":       map[string]any{"cni": map[string]any{"binDir": "/opt/cni/bin", "confDir": "/etc/cni/net.d"}},
			"resources":    map[string]any{"requests": map[string]any{"cpu": "50m", "memory": "40Mi"}},
			"nodeSelector": map[string]any{},
			"delegation":   false,
			"openVSwitch":  false,
			"cleanup":      false,
		},
		"defaultPool": map[string]any{"ranges": []any{}},
		"networks":    map[string]any{"install": false},
		"openstack":   map[string]any{"secret": ""},
		"ui":          map[string]any{"enabled": false},
	}
}

// bound narrows the type of a value: to those of Enum, or from Min to Max.
type bound struct {
	Enum     []any
	Min, Max int
}

// bounds are those of values by path. Those of configurations are checked by the programs'
// own validation in a test.
func bounds() map[string]bound {
	const controller, node = "controller.config.", "node.config."
	return map[string]bound{
		"controller.replicas": {Min: 1, Max: 9},

		controller + "defaultNetwork.driver":       {Enum: []any{config.DriverNative, config.DriverNeutron, config.DriverNone}},
		controller + "defaultNetwork.binding":      {Enum: []any{config.BindingRouted, config.BindingAddressOnly}},
		controller + "multiVIFSources[]":           {Enum: []any{config.SourceNPWG, config.SourceSubnets, config.SourceSRIOV}},
		controller + "networks.attachedBy":         {Enum: []any{config.AttachedByMultus, config.AttachedByFairlead}},
		controller + "networkPoolsPerNamespace":    {Min: 1, Max: 4096},
		controller + "workers":                     {Min: 1, Max: 1024},
		controller + "openstack.neutronPort":       {Enum: []any{"host", "trunk", "macvlan"}},
		controller + "openstack.ports.pools.low":   {Min: 0, Max: 64},
		controller + "openstack.ports.pools.high":  {Min: 1, Max: 64},
		controller + "openstack.ports.pools.batch": {Min: 1, Max: 64},
		controller + "openstack.fabric.pairs":      {Enum: []any{config.PairsPerPool, config.PairsPerBlock}},
		node + "encapsulation":                     {Enum: []any{"none", "vxlan", "auto"}},
		node + "vxlan.vni":                         {Min: 1, Max: 1<<24 - 1},
		node + "vxlan.port":                        {Min: 1, Max: 65535},
		node + "cni.names[]":                       {Enum: []any{"fairlead", "fairlead-ipam", "whereabouts"}},
	}
}

// programDefaults returns the defaults of the programs by the path of their configuration.
func programDefaults() map[string]any {
	return map[string]any{"controller.config": config.DefaultController(), "node.config": config.DefaultNode()}
}
