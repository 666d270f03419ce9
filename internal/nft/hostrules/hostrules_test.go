package hostrules_test

import (
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"fairlead.dev/fairlead/internal/nft/hostrules"
	"fairlead.dev/fairlead/test/netlab"
)

// The relevant rules of Docker, ufw and firewalld, as iptables-nft writes them.
const (
	docker = `table ip filter {
		chain DOCKER { iifname != "docker0" oifname "docker0" counter drop; }
		chain DOCKER-CT { oifname "docker0" ct state related,established counter accept; }
		chain DOCKER-FORWARD { counter jump DOCKER-CT; oifname "docker0" counter jump DOCKER; iifname "docker0" counter accept; }
		chain DOCKER-USER { counter return; }
		chain FORWARD { type filter hook forward priority filter; policy drop; counter jump DOCKER-USER; counter jump DOCKER-FORWARD; }
	}`
	ufw = `table ip filter {
		chain ufw-before-forward {
			ct state related,established counter accept
			ip protocol icmp icmp type { destination-unreachable, echo-request } counter accept
			counter jump ufw-user-forward
		}
		chain ufw-user-forward { }
		chain ufw-after-logging-forward { limit rate 3/minute burst 10 packets counter log prefix "[UFW BLOCK] "; }
		chain FORWARD { type filter hook forward priority filter; policy drop; counter jump ufw-before-forward; counter jump ufw-after-logging-forward; }
	}
	table ip6 filter {
		chain FORWARD { type filter hook forward priority filter; policy drop; ct state related,established counter accept; }
	}`
	firewalld = `table inet firewalld {
		chain filter_PREROUTING {
			type filter hook prerouting priority filter + 10; policy accept;
			icmpv6 type { nd-router-advert, nd-neighbor-solicit } accept
			meta nfproto ipv6 fib saddr . mark . iif oif missing drop
		}
		chain filter_FWD_public { counter return; }
		chain filter_FORWARD_POLICIES {
			iifname "eth0" oifname "eth0" jump filter_FWD_public
			iifname "eth0" jump filter_FWD_public
			jump filter_FWD_public
			reject with icmpx admin-prohibited
		}
		chain filter_FORWARD {
			type filter hook forward priority filter + 10; policy accept;
			ct state { established, related } accept
			ct status dnat accept
			iifname "lo" accept
			jump filter_FORWARD_POLICIES
			ct state invalid drop
			reject with icmpx admin-prohibited
		}
	}`
	kubeProxy = `table ip filter {
		chain KUBE-FORWARD { ct state invalid drop; meta mark and 0x4000 == 0x4000 counter accept; ct state related,established accept; }
		chain KUBE-SERVICES { ip daddr 10.96.0.99 tcp dport 80 counter reject; }
		chain FORWARD { type filter hook forward priority filter; policy accept; counter jump KUBE-FORWARD; ct state new counter jump KUBE-SERVICES; }
	}`
)

func TestLook(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("making network namespaces needs root")
	}
	addr := netip.MustParseAddr
	among := hostrules.Packet{In: "fairlead0", Out: "fairlead0", Source: addr("10.244.1.5"), Target: addr("10.244.1.6")}
	out := hostrules.Packet{In: "fairlead0", Out: "eth0", Source: addr("10.244.1.5"), Target: addr("192.0.2.1")}
	among6 := hostrules.Packet{In: "fairlead0", Out: "fairlead0", Source: addr("fd00:10::5"), Target: addr("fd00:10::6")}
	enters6 := hostrules.Packet{In: "fairlead-vx6", Source: addr("fd00:77::12"), Target: addr("fd00:10::6")}
	astray6 := enters6
	astray6.Astray = true
	forward := func(policy string, rules ...string) string {
		return "table inet host { set nets { typeof ip saddr; flags interval; elements = { 10.244.0.0/16, 172.16.0.0-172.16.3.7 }; }\n" +
			"set ports { typeof tcp dport; elements = { 80 }; }\n" +
			"chain deep { " + "ip saddr 10.244.0.0/16 accept; }\n" +
			"chain forward { type filter hook forward priority 10; policy " + policy + ";\n" + strings.Join(rules, "\n") + "\n}\n}\n"
	}
	const byPolicy = "the policy of chain forward of the nftables inet host"
	pass, drop, may := hostrules.Passes, hostrules.Drops, hostrules.MayDrop
	for _, tc := range []struct {
		name, rules string
		packet      hostrules.Packet
		want        hostrules.Verdict
		by          string
	}{
		{"no rules", "", among, pass, ""},
		{"our own do not count", "table inet fairlead { chain f { type filter hook forward priority 0; policy drop; }\n}", among, pass, ""},
		{"docker", docker, among, drop, "the policy of chain FORWARD of the nftables ip filter"},
		{"docker, outside", docker, out, drop, "the policy of chain FORWARD of the nftables ip filter"},
		{"docker, IPv6", docker, among6, pass, ""},
		{"docker with the remedy", docker + "\ninsert rule ip filter DOCKER-USER iifname \"fairlead0\" accept\n", among, pass, ""},
		{"docker with the remedy for others", docker + "\ninsert rule ip filter DOCKER-USER ip saddr 10.245.0.0/16 accept\n", among, drop, "the policy of chain FORWARD of the nftables ip filter"},
		{"ufw", ufw, among, drop, "the policy of chain FORWARD of the nftables ip filter"},
		{"ufw, IPv6", ufw, among6, drop, "the policy of chain FORWARD of the nftables ip6 filter"},
		{"ufw with a route", ufw + "\nadd rule ip filter ufw-user-forward ip saddr 10.244.0.0/16 counter accept\n", among, pass, ""},
		{"firewalld", firewalld, among, drop, "a rule in chain filter_FORWARD_POLICIES of the nftables inet firewalld"},
		{"firewalld, reverse path", firewalld, astray6, drop, "a rule in chain filter_PREROUTING of the nftables inet firewalld"},
		{"firewalld, the way back", firewalld, enters6, pass, ""},
		{"firewalld with a trusted link", firewalld + "\ninsert rule inet firewalld filter_FORWARD_POLICIES iifname \"fairlead0\" accept\n", among, pass, ""},
		{"kube-proxy", kubeProxy, among, pass, ""},
		{"two tables: one accepts, the other drops", kubeProxy + "\n" + forward("drop"), among, drop, byPolicy},

		{"a wildcard", forward("drop", `iifname "fair*" accept`), among, pass, ""},
		{"not from others", forward("accept", `iifname != "eth0" drop`), among, drop, "a rule in chain forward of the nftables inet host"},
		{"by name of both", forward("drop", `iifname "fairlead0" oifname "fairlead0" accept`), out, drop, byPolicy},
		{"a set of names", forward("drop", `iifname { "lo", "fairlead0" } accept`), among, pass, ""},
		{"a set without it", forward("drop", `iifname { "lo", "docker0" } accept`), among, drop, byPolicy},
		{"a set of networks", forward("drop", `ip saddr @nets accept`), among, pass, ""},
		{"not in a set of networks", forward("drop", `ip daddr @nets accept`), out, drop, byPolicy},
		{"none of a set", forward("drop", `ip saddr != @nets accept`), among, drop, byPolicy},
		{"a range", forward("drop", `ip saddr 10.244.1.0-10.244.1.9 accept`), among, pass, ""},
		{"a network of 24 bits", forward("drop", `ip saddr 10.244.1.0/24 ip daddr 10.244.1.0/24 accept`), among, pass, ""},
		{"a network of 18 bits", forward("drop", `ip saddr 10.244.64.0/18 accept`), among, drop, byPolicy},
		{"IPv6 networks", forward("drop", `ip6 saddr fd00:10::/64 accept`), among6, pass, ""},
		{"the other family's", forward("drop", `ip saddr 10.244.0.0/16 accept`), among6, drop, byPolicy},
		{"new connections", forward("drop", `ct state new accept`), among, pass, ""},
		{"all but new ones", forward("drop", `ct state != new accept`), among, drop, byPolicy},
		{"a map of states", forward("drop", `ct state vmap { established : accept, related : accept, invalid : drop }`), among, drop, byPolicy},
		{"a map of links", forward("drop", `iifname vmap { "fairlead0" : jump deep, "lo" : accept }`), among, pass, ""},
		{"a map of links that drops", forward("accept", `iifname vmap { "fairlead0" : drop, "lo" : accept }`), among, drop, "a rule in chain forward of the nftables inet host"},
		{"goto does not come back", forward("drop", `iifname "fairlead0" goto deep`, "accept"), among6, drop, byPolicy},
		{"return ends a chain", forward("drop", "return", "accept"), among, drop, byPolicy},
		{"a port may be the one", forward("drop", `tcp dport 80 accept`), among, may, byPolicy},
		{"a port in a set may be the one", forward("drop", `tcp dport @ports accept`), among, may, byPolicy},
		{"a port that is dropped", forward("accept", `tcp dport 25 drop`), among, pass, ""},
		{"another protocol", forward("drop", `meta l4proto icmp accept`), among, drop, byPolicy},
		{"a limit", forward("drop", `limit rate 10/second accept`), among, may, byPolicy},
		{"maybe in another chain", forward("drop", `meta skuid 0 jump deep`), among, may, byPolicy},
		{"maybe in another chain, of others", forward("drop", `meta skuid 0 jump deep`), among6, drop, byPolicy},
		{"a set of two parts", "table inet pairs { set s { typeof iifname . ip saddr; elements = { \"fairlead0\" . 10.244.1.5 }; }\n" +
			"chain f { type filter hook forward priority 0; policy drop; iifname . ip saddr @s accept; }\n}", among, may, "the policy of chain f of the nftables inet pairs"},
		{"a map of ports", forward("drop", `tcp dport vmap { 80 : jump deep, 25 : drop }`), among, may, byPolicy},
		{"a mark", forward("drop", `meta mark and 0xf == 0x1 accept`), among, drop, byPolicy},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ns, err := netlab.NewNamespace()
			if err != nil {
				t.Fatal(err)
			}
			defer ns.Close()
			cmd := exec.CommandContext(t.Context(), "nft", "-f", "-")
			var out strings.Builder
			cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(tc.rules), &out, &out
			if err := ns.Start(cmd); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Fatalf("%v: %s", err, out.String())
			}
			err = ns.Do(func() error {
				got, _, err := hostrules.Look("fairlead", []hostrules.Packet{tc.packet})
				if err == nil && (got[0].Verdict != tc.want || got[0].By != tc.by) {
					t.Errorf("%+v, want %d by %q", got[0], tc.want, tc.by)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}
