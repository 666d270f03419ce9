package nft_test

import (
	"strings"
	"testing"
	"time"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/nft"
	"fairlead.dev/fairlead/test/nettest"
	"fairlead.dev/fairlead/test/ovslab"
)

// The packets of a link that is shut do not reach the host, also if the link is made anew
// under the same name, until the link is forgotten.
func TestShut(t *testing.T) {
	host, pod := nettest.NewNode(t), nettest.NewNamespace(t)
	var kernel nft.Kernel
	do := func(what string, fn func() error) {
		t.Helper()
		if err := host.Namespace().Do(fn); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	shut := func() error { return kernel.Shut(t.Context(), "fl0") }
	forget := func() error { return kernel.Forget(t.Context(), "fl0") }
	connect := func() {
		t.Helper()
		nettest.AddCable(t, host.Namespace(), "fl0", 0, nettest.Cable{To: pod, Name: "eth0", MTU: 1500})
		for ns, a := range map[*link.Namespace]string{host.Namespace(): "10.9.0.1/24", pod: "10.9.0.2/24"} {
			name := map[bool]string{true: "eth0", false: "fl0"}[ns == pod]
			ovslab.Run(t, ns, "ip", "address", "add", a, "dev", name)
			ovslab.Run(t, ns, "ip", "link", "set", name, "up")
		}
	}
	reaches := func(when string, want bool) {
		t.Helper()
		within := 5 * time.Second
		if !want {
			within = 100 * time.Millisecond
		}
		if err := nettest.Talk(t, pod, host.Namespace(), nettest.Addr("10.9.0.1"), within); (err == nil) != want {
			t.Errorf("%s: the pod reaches the host: %v, want %t", when, err, want)
		}
	}
	do("forget what is not there", forget)
	connect()
	reaches("at first", true)
	do("shut", shut)
	do("shut again", shut)
	reaches("shut", false)
	nettest.Steps(t, host, link.Remove("fl0"))
	connect()
	do("shut the second link", shut)
	reaches("made anew", false)
	do("forget", forget)
	do("forget again", forget)
	reaches("forgotten", true)
	do("shut", shut)
	var removed []string
	do("remove", func() (err error) {
		removed, err = kernel.Remove(t.Context())
		return err
	})
	if len(removed) != 1 || removed[0] != "nftables table netdev fairlead-shut" {
		t.Errorf("removed %q", removed)
	}
	if left := ovslab.Run(t, host.Namespace(), "nft", "list", "ruleset"); strings.TrimSpace(left) != "" {
		t.Errorf("left behind:\n%s", left)
	}
}
