package node

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/answer"
	"fairlead.dev/fairlead/internal/node/background"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/run"
	"fairlead.dev/fairlead/test/nodetest"
)

// checked plugs a pod with two interfaces and returns the CHECK that a runtime sends for
// it.
func (w *testNode) checked() cniproto.Request {
	w.t.Helper()
	w.pod("p", "u1", "eth0", "net1")
	w.mustAdd("c1", "p", "u1")
	return w.checkOf("1.1.0")
}

// checkOf returns the CHECK of sandbox c1, of pod p, with the answer to its ADD.
func (w *testNode) checkOf(version string) cniproto.Request {
	w.t.Helper()
	r := request(cniproto.VerbAdd, "c1", w.netns("c1"), "p", "u1")
	r.Config = json.RawMessage(`{"cniVersion":"` + version + `","name":"fairlead","type":"fairlead"}`)
	answer, err := w.handle(r)
	if err != nil {
		w.t.Fatal(err)
	}
	r.Verb, r.Config = cniproto.VerbCheck, withPrevResult(w.t, r.Config, answer)
	return r
}

func withPrevResult(t *testing.T, config, prev json.RawMessage) json.RawMessage {
	t.Helper()
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(config, &fields); err != nil {
		t.Fatal(err)
	}
	fields["prevResult"] = prev
	raw, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// changeLink changes a link without the daemon's knowledge.
func (w *testNode) changeLink(ifName string, f func(*fakeLink)) {
	name := plug.RoutedName("c1", ifName)
	w.kernel.change(func(links map[string]fakeLink) {
		l := links[name]
		f(&l)
		links[name] = l
	})
}

// changePrev changes the prevResult of a request.
func changePrev(t *testing.T, r *cniproto.Request, f func(*types100.Result)) {
	t.Helper()
	var config struct{ PrevResult types100.Result }
	if err := json.Unmarshal(r.Config, &config); err != nil {
		t.Fatal(err)
	}
	f(&config.PrevResult)
	raw, err := json.Marshal(config.PrevResult)
	if err != nil {
		t.Fatal(err)
	}
	r.Config = withPrevResult(t, r.Config, raw)
}

func TestCheck(t *testing.T) {
	host := plug.RoutedName("c1", "eth0")
	cases := []struct {
		name  string
		spoil func(w *testNode, r *cniproto.Request)
		code  int
		words []string
		diffs []string // all of them
	}{
		{name: "as it was", spoil: func(*testNode, *cniproto.Request) {}},
		{
			name: "an interface is gone", code: answer.CodeDiffers, diffs: []string{"interface eth0 is missing"},
			spoil: func(w *testNode, _ *cniproto.Request) {
				w.kernel.change(func(links map[string]fakeLink) { delete(links, host) })
			},
		},
		{
			name: "all differences of all interfaces are reported", code: answer.CodeDiffers, words: []string{"5 differences", "ns/p"},
			diffs: []string{
				"interface eth0 has MAC 0a:58:0a:f4:00:99, not 0a:58:0a:f4:00:05", "interface eth0 has an MTU of 1600 bytes, not 1500",
				"interface eth0 lacks address 10.244.1.5/32", "interface eth0 lacks the route to 0.0.0.0/0 via 169.254.1.1",
				"interface net1 lacks address 10.244.1.6/32",
			},
			spoil: func(w *testNode, _ *cniproto.Request) {
				w.changeLink("eth0", func(l *fakeLink) {
					l.plug.MAC, _ = net.ParseMAC("0a:58:0a:f4:00:99")
					l.plug.MTU, l.plug.Addresses, l.plug.Gateways = 1600, nil, nil
				})
				w.changeLink("net1", func(l *fakeLink) { l.plug.Addresses = nil })
			},
		},
		{
			name: "the host's side", code: answer.CodeDiffers,
			diffs: []string{"host end " + host + " of eth0 is down", "host end " + host + ` of eth0 is a port of "br9"`},
			spoil: func(w *testNode, _ *cniproto.Request) {
				w.changeLink("eth0", func(l *fakeLink) { l.host.Up, l.host.Master = false, "br9" })
			},
		},
		{
			name: "another pair under the same name", code: answer.CodeDiffers, diffs: []string{"interface eth0 does not lead to its host end " + host},
			spoil: func(w *testNode, r *cniproto.Request) {
				w.kernel.wrongPeer = host
			},
		},
		{
			name: "the host's routes are gone", code: answer.CodeDiffers,
			diffs: []string{
				"the host has no route to 10.244.1.5/32 by host end " + host + " of eth0, or no neighbour",
				"the host has no route to 10.244.1.6/32 by host end " + plug.RoutedName("c1", "net1") + " of net1, or no neighbour",
			},
			spoil: func(w *testNode, _ *cniproto.Request) {
				for _, name := range []string{"eth0", "net1"} {
					w.changeLink(name, func(l *fakeLink) { l.routes = nil })
				}
			},
		},
		{
			name: "what others added is theirs",
			spoil: func(w *testNode, _ *cniproto.Request) {
				w.changeLink("eth0", func(l *fakeLink) {
					l.plug.Addresses = append(l.plug.Addresses, netip.MustParsePrefix("192.0.2.9/32"))
					l.plug.Routes = append(l.plug.Routes, plug.Route{Destination: netip.MustParsePrefix("192.0.2.0/24")})
				})
			},
		},
		{
			name: "a plugin after ours changed MTU and routes, and said so",
			spoil: func(w *testNode, r *cniproto.Request) {
				w.changeLink("eth0", func(l *fakeLink) { l.plug.MTU, l.plug.Gateways = 1400, nil })
				changePrev(w.t, r, func(p *types100.Result) { p.Interfaces[1].Mtu, p.Routes = 1400, nil })
			},
		},
		{
			name: "a plugin after ours changed MTU and the tables of routes, and said nothing, as tuning and sbr do",
			spoil: func(w *testNode, _ *cniproto.Request) {
				w.changeLink("eth0", func(l *fakeLink) {
					l.plug.MTU, l.plug.Gateways = 1400, nil
					l.others = []plug.Route{{Destination: netip.MustParsePrefix("0.0.0.0/0"), Gateway: netip.MustParseAddr("169.254.1.1")}}
				})
			},
		},
		{
			name: "a route of another table by another gateway is another route", code: answer.CodeDiffers,
			diffs: []string{"interface eth0 lacks the route to 0.0.0.0/0 via 169.254.1.1"},
			spoil: func(w *testNode, _ *cniproto.Request) {
				w.changeLink("eth0", func(l *fakeLink) {
					l.plug.Gateways = nil
					l.others = []plug.Route{{Destination: netip.MustParsePrefix("0.0.0.0/0"), Gateway: netip.MustParseAddr("169.254.1.2")}}
				})
			},
		},
		{
			name: "a larger MTU than was said", code: answer.CodeDiffers, diffs: []string{"interface eth0 has an MTU of 1450 bytes, not 1400"},
			spoil: func(w *testNode, r *cniproto.Request) {
				w.changeLink("eth0", func(l *fakeLink) { l.plug.MTU = 1450 })
				changePrev(w.t, r, func(p *types100.Result) { p.Interfaces[1].Mtu = 1400 })
			},
		},
		{
			name: "a plugin after ours changed the MAC, and said so", code: answer.CodeDiffers,
			diffs: []string{"interface eth0 has MAC 0a:58:0a:f4:00:99, which a plugin after this one gave it: the node drops what it sends, " +
				"because it was plugged with 0a:58:0a:f4:00:05: have this plugin give it, by its capability mac"},
			spoil: func(w *testNode, r *cniproto.Request) {
				w.changeLink("eth0", func(l *fakeLink) { l.plug.MAC, _ = net.ParseMAC("0a:58:0a:f4:00:99") })
				changePrev(w.t, r, func(p *types100.Result) { p.Interfaces[1].Mac = "0A:58:0A:F4:00:99" })
			},
		},
		{
			name: "the result of another sandbox", code: answer.CodeDiffers,
			diffs: []string{"prevResult: lacks address 10.244.1.5/32 of interface eth0", "prevResult: lacks interface net1 of the sandbox"},
			spoil: func(w *testNode, r *cniproto.Request) {
				changePrev(w.t, r, func(p *types100.Result) {
					p.IPs[0].Address.IP = net.IPv4(10, 244, 1, 77)
					p.Interfaces = p.Interfaces[:2]
				})
			},
		},
		{
			name: "no prevResult", code: cniproto.CodeInvalidConfig, words: []string{"prevResult", "missing"},
			spoil: func(_ *testNode, r *cniproto.Request) { r.Config = json.RawMessage(config110) },
		},
		{
			name: "a prevResult that is null", code: cniproto.CodeInvalidConfig, words: []string{"prevResult", "missing"},
			spoil: func(w *testNode, r *cniproto.Request) {
				r.Config = withPrevResult(w.t, r.Config, json.RawMessage("null"))
			},
		},
		{
			name: "a prevResult that is none", code: cniproto.CodeDecode, words: []string{"prevResult"},
			spoil: func(w *testNode, r *cniproto.Request) {
				r.Config = withPrevResult(w.t, r.Config, json.RawMessage(`{"cniVersion":"1.1.0","ips":[{"address":"x"}]}`))
			},
		},
		{
			name: "another namespace", code: answer.CodeDiffers, words: []string{"CNI_NETNS", "namespace"},
			spoil: func(w *testNode, _ *cniproto.Request) { w.kernel.namespace(w.netns("c1")) },
		},
		{
			name: "another interface name", code: cniproto.CodeInvalidEnvironment, words: []string{"CNI_IFNAME", "eth9", "eth0"},
			spoil: func(_ *testNode, r *cniproto.Request) { r.IfName = "eth9" },
		},
		{
			name: "no sandbox", code: cniproto.CodeUnknownContainer, words: []string{"c1", "n1"},
			spoil: func(w *testNode, _ *cniproto.Request) { _ = w.del("c1") },
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			onTestNode(t, func(w *testNode) {
				t := w.t
				r := w.checked()
				tc.spoil(w, &r)
				_, err := w.handle(r)
				nodetest.WantCode(t, err, tc.code, tc.words...)
				var e *cniproto.Error
				if errors.As(err, &e) && e.Details != strings.Join(tc.diffs, "; ") {
					t.Errorf("details %q\nwant    %q", e.Details, strings.Join(tc.diffs, "; "))
				}
			})
		})
	}
}

// Changes by later plugins of the chain are logged at the level of a pod, and are no
// error.
func TestCheckTellsWhatOthersChanged(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		r := w.checked()
		w.changeLink("eth0", func(l *fakeLink) { l.plug.MTU = 1400 })
		var lines []string
		log := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{Verbosity: run.LevelPod})
		_, err := w.daemon.Handle(logr.NewContext(context.Background(), log), r)
		nodetest.WantCode(w.t, err, 0)
		if all := strings.Join(lines, "\n"); !strings.Contains(all, "interface eth0 has an MTU of 1400 bytes, less than the network's 1500") {
			w.t.Errorf("the log says %s", all)
		}
	})
}

// CHECK compares the packet filter with its keeper's knowledge. The keeper notices each
// change by others and repairs it.
func TestCheckOfThePacketFilter(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		r := w.checked() // the filter is still to be written
		_, err := w.handle(r)
		nodetest.WantCode(t, err, 0)
		filtered()

		w.filter.setFail(errors.New("nft: operation not permitted"))
		w.daemon.config.Firewall.Noticed(0) // another program flushed the tables
		settle()
		_, err = w.handle(r)
		nodetest.WantCode(t, err, answer.CodeDiffers, "1 difference")
		var e *cniproto.Error
		if errors.As(err, &e); !strings.Contains(e.Details, "packet filter: ") || !strings.Contains(e.Details, "operation not permitted") {
			t.Errorf("details %q", e.Details)
		}

		w.filter.setFail(nil)
		time.Sleep(time.Minute) //nolint:forbidigo // the bubble's clock
		_, err = w.handle(r)
		nodetest.WantCode(t, err, 0)
	})
}

// CHECK itself changes nothing, but the host's side is repaired soon after it.
func TestCheckLeavesTheRepairToTheBackground(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		r := w.checked()
		w.changeLink("net1", func(l *fakeLink) { l.host.Up, l.host.Master = false, "br9" })
		_, err := w.handle(r)
		nodetest.WantCode(t, err, answer.CodeDiffers, "2 differences")
		settle()
		_, err = w.handle(r)
		nodetest.WantCode(t, err, 0)

		// The inside belongs to the pod, and is left to people.
		w.changeLink("net1", func(l *fakeLink) { l.plug.Addresses = nil })
		for range 2 {
			_, err = w.handle(r)
			nodetest.WantCode(t, err, answer.CodeDiffers, "1 difference")
			settle()
		}
	})
}

// The result that a runtime passes has the form of the request's version.
func TestCheckInEveryVersion(t *testing.T) {
	for _, version := range []string{"0.4.0", "1.0.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			onTestNode(t, func(w *testNode) {
				w.checked()
				_, err := w.handle(w.checkOf(version))
				nodetest.WantCode(w.t, err, 0)
			})
		})
	}
}

// CHECK names a damaged record: the interfaces of the sandbox are not known.
func TestCheckOfADamagedRecord(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		w.pod("p", "u1")
		result, err := w.add("c1", "p", "u1")
		if err != nil {
			w.t.Fatal(err)
		}
		settle()
		w.damageRecord()
		w.restart()
		r := request(cniproto.VerbCheck, "c1", w.netns("c1"), "p", "u1")
		r.Config = withPrevResult(w.t, r.Config, result)
		_, err = w.handle(r)
		nodetest.WantCode(w.t, err, answer.CodeDiffers, "was damaged", "replace the pod")
		_, err = w.add("c1", "p", "u1")
		nodetest.WantCode(w.t, err, answer.CodeDiffers, "was damaged", "replace the pod")
		w.wantLinks("c1/eth0")
	})
}

// A prevResult comes from a runtime's cache on disk, which may hold anything.
func FuzzPrevResult(f *testing.F) {
	for _, version := range cniproto.Versions {
		f.Add(version, []byte(`{"cniVersion":"`+version+`","interfaces":[{"name":"eth0","sandbox":"/run/netns/a"}],`+
			`"ips":[{"version":"4","interface":0,"address":"10.244.1.5/32"}],"routes":[{"dst":"0.0.0.0/0","gw":"169.254.1.1"}]}`))
	}
	f.Add("1.1.0", []byte(`{"interfaces":[null],"ips":[null,{}],"routes":[null,{}],"dns":null}`))
	f.Add("", []byte(`[]`))
	interfaces := []ledger.Interface{{Made: plug.Made{HostLink: "h"}}}
	interfaces[0].Interface = nodetest.Attachment("p", "u1").Spec.Interfaces[0]
	inside := map[string]plug.Inspected{"eth0": {Up: true}}
	f.Fuzz(func(t *testing.T, version string, prev []byte) {
		config, err := json.Marshal(map[string]any{"cniVersion": version, "prevResult": json.RawMessage(prev)})
		if err != nil {
			return
		}
		result, err := answer.ParsePrevResult(cniproto.Request{Verb: cniproto.VerbCheck, Config: config})
		if err != nil {
			wantCoded(t, err)
			return
		}
		differences("c1", interfaces, result, inspection{inside: inside})
	})
}

// wantCoded checks that an error has a code of its own for the runtime.
func wantCoded(t *testing.T, err error) {
	t.Helper()
	var e *cniproto.Error
	if !errors.As(answer.CNI(err), &e) || e.Code == cniproto.CodeInternal || e.Msg == "" {
		t.Errorf("no error for a runtime: %v", err)
	}
}

// containerd sends no CHECK. The sweep repairs host ends that were set down, put on a bridge, or have
// lost their routes, and logs nothing about intact ones.
func TestHostEndsArePutBackWithoutCheck(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(*fakeLink)
	}{
		{"down", func(l *fakeLink) { l.host.Up = false }},
		{"on a bridge", func(l *fakeLink) { l.host.Master = "br9" }},
		{"without its route", func(l *fakeLink) { l.routes = nil }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onTestNode(t, func(w *testNode) {
				w.checked()
				w.changeLink("net1", tt.spoil)
				<-time.After(background.SweepInterval)
				settle()
				for _, name := range []string{"eth0", "net1"} {
					w.changeLink(name, func(l *fakeLink) {
						if !l.host.Up || l.host.Master != "" || len(l.routes) != 1 {
							t.Errorf("%s: %+v, routes %v", name, l.host, l.routes)
						}
					})
				}
			})
		})
	}
}
