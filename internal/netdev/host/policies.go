package host

import (
	"fmt"

	"github.com/google/nftables"
)

// DropPolicies returns the chains with hook forward and policy drop, each as "FORWARD of
// table ip filter". A packet of a pod passes such a chain only if one of its rules accepts
// the packet. Chains of iptables-legacy are not among them.
func (k *Kernel) DropPolicies() (out []string, err error) {
	families := map[nftables.TableFamily]string{
		nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6",
	}
	err = k.In(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		all, err := conn.ListChains()
		if err != nil {
			return err
		}
		for _, c := range all {
			drops := c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop
			if family, ok := families[c.Table.Family]; ok && drops && c.Hooknum != nil && *c.Hooknum == *nftables.ChainHookForward {
				out = append(out, fmt.Sprintf("%s of table %s %s", c.Name, family, c.Table.Name))
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the nftables chains of the host: %w", err)
	}
	return out, nil
}
