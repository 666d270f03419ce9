package config

// Fabric configures the entries that the cloud gets for the nodes.
type Fabric struct {
	// Pairs is "PerPool" (default) if the port of each node gets allowed address pairs with
	// the ranges of all PerNode pools, or "PerBlock" if it gets those of the node's blocks.
	// A port has room for 10 pairs: a node whose blocks need more gets those of the pools.
	Pairs string `json:"pairs,omitempty"`
	// SecurityGroup is the ID or name of a security group that the ports of all nodes have
	// already. It gets the rules that let packets of pods in. If empty, the default, the
	// controller makes a group and adds it to the ports.
	SecurityGroup string `json:"securityGroup,omitempty"`
	// Router is the ID or name of the router between the subnets of the nodes. It gets a
	// route to the blocks of each node while nodes are in different subnets. If empty, the
	// default, packets between subnets are encapsulated.
	Router string `json:"router,omitempty"`
	// Remove takes all entries back. Set it, and remove the section when no NodeNetwork has
	// spec.fabric any more.
	Remove bool `json:"remove,omitempty"`
}

// Values of Fabric.Pairs.
const (
	PairsPerPool  = "PerPool"
	PairsPerBlock = "PerBlock"
)

// validateFabric adds the problems of the fabric to v.
func (c *Controller) validateFabric(v *invalid) {
	f := c.OpenStack.Fabric
	if f == nil {
		return
	}
	v.check(c.OpenStack.Cluster != "", "openstack.cluster", c.OpenStack.Cluster, "must not be empty if openstack.fabric is set")
	v.check(f.Pairs == "" || f.Pairs == PairsPerPool || f.Pairs == PairsPerBlock, "openstack.fabric.pairs", f.Pairs, `must be "PerPool" or "PerBlock"`)
	for field, name := range map[string]string{"securityGroup": f.SecurityGroup, "router": f.Router} {
		v.check(len(name) <= 255, "openstack.fabric."+field, name, "must be an ID or a name of at most 255 characters")
	}
}
