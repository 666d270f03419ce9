package neutron

import (
	"encoding/hex"
	"strings"

	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// Judge reports whether a port is that of a pod of this cluster by its device ID, with or
// without a tag. odd is why garbage collection leaves such a port alone; empty if it does not.
func (d *Driver) Judge(c *cloud.Cloud, p cloud.Port) (mine bool, odd string) {
	own, found := strings.CutPrefix(p.DeviceID, prefixOf(d.cfg.Cluster))
	if p.DeviceOwner != DeviceOwner || !found {
		return false, ""
	}
	parts := strings.Split(own, "/")
	if hash, err := hex.DecodeString(parts[len(parts)-1]); len(parts) != 3 || err != nil || len(hash) != hashLength {
		return false, "" // as of a pool: not the form of a pod
	}
	if _, ok := d.ours(c, p); !ok {
		odd = "it has the device ID of this cluster, and its name, description or project was changed: delete it by hand if no pod uses it"
	}
	return true, odd
}
