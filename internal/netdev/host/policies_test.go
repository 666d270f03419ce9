package host

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"fairlead.dev/fairlead/test/nettest"
)

// TestDropPolicies: chains that forward nothing unless a rule accepts it are named, others
// are not.
func TestDropPolicies(t *testing.T) {
	nettest.NeedRoot(t)
	k := newHostNode(t)
	nettest.In(t, k.Namespace(), func() error {
		cmd := exec.CommandContext(t.Context(), "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(`
			table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; }
			chain INPUT { type filter hook input priority 0; policy drop; }
			chain beside { drop; }
			}
			table ip6 filter { chain FORWARD { type filter hook forward priority 0; policy accept; }
			}
			table inet firewall { chain forwarded { type filter hook forward priority 10; policy drop; }
			}
			table bridge b { chain forwarded { type filter hook forward priority 0; policy drop; }
			}
			`)
		return cmd.Run()
	})
	got, err := k.DropPolicies()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	if want := []string{"FORWARD of table ip filter", "forwarded of table inet firewall"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
