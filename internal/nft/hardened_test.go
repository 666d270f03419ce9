package nft_test

import (
	"net/netip"
	"os"
	"strings"
	"testing"
)

// Pods reach each other, the node and others, and are reached by the node, whatever an operator has
// hardened on the host before or after the pods came.
func TestHardenedHosts(t *testing.T) {
	for name, settings := range map[string]string{
		"arp_ignore 1, arp_announce 2": "arp_ignore=1 arp_announce=2",
		"arp_ignore 2":                 "arp_ignore=2",
		"arp_ignore 8, arp_filter":     "arp_ignore=8 arp_filter=1",
		"rp_filter 0":                  "rp_filter=0",
		"rp_filter 1":                  "rp_filter=1",
		"rp_filter 2":                  "rp_filter=2",
		"no redirects, no source route, martians are logged": "accept_redirects=0 secure_redirects=0 send_redirects=0 accept_source_route=0 log_martians=1",
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			before := l.pod(5)
			l.inNode(func() error {
				for setting := range strings.FieldsSeq(settings) {
					key, value, _ := strings.Cut(setting, "=")
					for _, of := range []string{"all", "default"} {
						if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+of+"/"+key, []byte(value), 0); err != nil {
							return err
						}
					}
				}
				return nil
			})
			after := l.pod(6)
			l.apply(l.hostState())
			for _, s := range []*sandbox{before, after} {
				serve(t, s.Namespace, 7000)
			}
			serve(t, l.world.Namespace, 7000)
			serve(t, l.node.Namespace, 7000)
			for _, v := range []struct{ world, node, first, second netip.Addr }{
				{l.world.V4.Addr(), l.node.V4.Addr(), before.v4(), after.v4()},
				{l.world.V6.Addr(), l.node.V6.Addr(), before.v6(), after.v6()},
			} {
				wantSeen(t, before.Namespace, v.world, 7000, v.node)
				wantSeen(t, before.Namespace, v.second, 7000, v.first)
				wantSeen(t, after.Namespace, v.first, 7000, v.second)
				wantSeen(t, after.Namespace, v.node, 7000, v.second)
				wantSeen(t, l.node.Namespace, v.first, 7000, v.node)
				wantSeen(t, l.node.Namespace, v.second, 7000, v.node)
			}
		})
	}
}
