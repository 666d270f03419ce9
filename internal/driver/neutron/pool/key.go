package pool

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Key is what the ports of a pool have in common. Names are those of the configuration, so
// that a pod finds its pool without a call of the cloud.
type Key struct {
	Node, Host, Project, Network string
	// Subnets in order; Groups sorted, nil for the default group of the project.
	Subnets, Groups []string
	PortSecurityOff bool
	// Way is how a Maker makes the ports ready; empty for ports that are bound on Host.
	Way string `json:",omitempty"`
}

// text identifies a key. An empty list of subnets is none, as a stored object has it.
func (k Key) text() string {
	if len(k.Subnets) == 0 {
		k.Subnets = nil
	}
	raw, err := json.Marshal(k)
	if err != nil {
		panic(err) // strings and a bool
	}
	return string(raw)
}

// maxNodeName is the length of a node's name in the name of an object. The device ID of a
// port has the name of its object, and at most 255 characters.
const maxNodeName = 150

// name returns the name of the nth PortPool of a key: "NODE-HASH-N".
func (k Key) name(n int) string { return k.prefix() + strconv.Itoa(n) }

// prefix is the name of a PortPool of a key without its number.
func (k Key) prefix() string {
	sum := sha256.Sum256([]byte(k.text()))
	return short(k.Node, maxNodeName) + "-" + hex.EncodeToString(sum[:5]) + "-"
}

// short returns the beginning of a node's name, which ends with a letter or digit as the
// whole does.
func short(node string, most int) string { return strings.TrimRight(node[:min(len(node), most)], "-.") }

// spec returns the spec of a PortPool without ports.
func (k Key) spec() v1alpha1.PortPoolSpec {
	return v1alpha1.PortPoolSpec{
		Node: k.Node, Way: k.Way, Host: k.Host, Project: k.Project, Network: k.Network,
		Subnets: k.Subnets, SecurityGroups: k.Groups, PortSecurityOff: k.PortSecurityOff,
	}
}

func keyOf(s *v1alpha1.PortPoolSpec) Key {
	return Key{Node: s.Node, Way: s.Way, Host: s.Host, Project: s.Project, Network: s.Network, Subnets: s.Subnets, Groups: s.SecurityGroups, PortSecurityOff: s.PortSecurityOff}
}

// String returns a key for people.
func (k Key) String() string {
	where := k.Network
	if where == "" {
		where = strings.Join(k.Subnets, ",")
	}
	return fmt.Sprintf("network %q on node %s", where, k.Node)
}

// Place is the slot of a port.
type Place struct {
	// Pool is the name of the PortPool.
	Pool string
	Slot int
}

// Made is a port of a pool in the cloud.
type Made struct {
	Port
	Place
	// Network, Host and Parent are those that a PortPool has of the port.
	Network, Host, Parent string
}
