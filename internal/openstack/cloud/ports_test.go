package cloud

import (
	"encoding/json"
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPortOfJSON(t *testing.T) {
	all := cmp.Options{
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
		cmp.AllowUnexported(Port{}),
	}
	subnet := "18e59115-cd1f-4d51-912c-22247b0c2274"
	for name, test := range map[string]struct {
		json string
		want Port
	}{
		"bound": {
			`{"id": "p", "mac_address": "fa:16:3e:9a:b9:e7", "status": "DOWN", "admin_state_up": true, "binding:host_id": "node1",
			  "binding:vif_type": "ovs", "binding:vif_details": {"port_filter": true, "bridge_name": "br-int", "bound_drivers": {"0": "ovn"}},
			  "fixed_ips": [{"subnet_id": "` + subnet + `", "ip_address": "10.66.0.5"}, {"subnet_id": "s6", "ip_address": "fd00:66::2aa"}],
			  "tags": [], "security_groups": [], "qos_policy_id": null, "revision_number": 3, "port_security_enabled": true}`,
			Port{
				ID: "p", MAC: "fa:16:3e:9a:b9:e7", Status: "DOWN", Up: true, Host: "node1", VIFType: "ovs", Bridge: "br-int", PortSecurity: true, Revision: 3,
				Addresses: []Address{{subnet, netip.MustParseAddr("10.66.0.5")}, {"s6", netip.MustParseAddr("fd00:66::2aa")}},
			},
		},
		"of a member, who sees no binding": {`{"id": "p", "qos_policy_id": "q"}`, Port{ID: "p", QoSPolicy: "q"}},
		"bridge null on Zed":               {`{"id": "p", "binding:vif_details": {"bridge_name": null}}`, Port{ID: "p"}},
		"pairs": {
			`{"id": "p", "mac_address": "fa:16:3e:9a:b9:e7", "allowed_address_pairs": [{"mac_address": "FA:16:3E:9A:B9:E7", "ip_address": "10.3.0.7/16"},
			  {"mac_address": "FA:16:3E:00:00:01", "ip_address": "fd00::1"}, {"mac_address": "fa:16:3e:00:00:01", "ip_address": "words"}]}`,
			Port{ID: "p", MAC: "fa:16:3e:9a:b9:e7", Pairs: []Pair{
				{Prefix: netip.MustParsePrefix("10.3.0.7/16")},
				{Prefix: netip.MustParsePrefix("fd00::1/128"), MAC: "fa:16:3e:00:00:01"},
				{MAC: "fa:16:3e:00:00:01"},
			}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got Port
			if err := json.Unmarshal([]byte(test.json), &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got, all); diff != "" {
				t.Errorf("port (-want +got):\n%s", diff)
			}
		})
	}
}

// A pair that was not understood is never written back in another form.
func TestPairThatWasNotUnderstood(t *testing.T) {
	if all, err := pairs([]Pair{{MAC: "fa:16:3e:00:00:01"}}); !errors.Is(err, ErrInvalid) {
		t.Errorf("written as %v, %v; want %v", all, err, ErrInvalid)
	}
	all, err := pairs([]Pair{{Prefix: netip.MustParsePrefix("10.0.0.1/32")}, {Prefix: netip.MustParsePrefix("10.0.0.0/8"), MAC: "m"}})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(all)
	want := `[{"ip_address":"10.0.0.1"},{"ip_address":"10.0.0.0/8","mac_address":"m"}]`
	if err != nil || string(raw) != want {
		t.Errorf("written as %s, %v; want %s", raw, err, want)
	}
}

// The answer to a change lacks each field that the cloud dropped.
func TestDropped(t *testing.T) {
	text, yes, groups := "x", true, []string{"b", "a"}
	changed := []Pair{{Prefix: netip.MustParsePrefix("10.0.0.0/8"), MAC: "FA:16:3E:00:00:01"}, {Prefix: netip.MustParsePrefix("fd00::/8")}}
	for name, test := range map[string]struct {
		change PortChange
		done   Port
	}{
		"name":                  {PortChange{Name: &text}, Port{Name: text}},
		"binding:host_id":       {PortChange{Host: &text}, Port{Host: text}},
		"dns_name":              {PortChange{DNSName: &text}, Port{DNSName: text}},
		"qos_policy_id":         {PortChange{QoSPolicy: &text}, Port{QoSPolicy: text}},
		"port_security_enabled": {PortChange{PortSecurity: &yes}, Port{PortSecurity: true}},
		"security_groups":       {PortChange{Groups: &groups}, Port{Groups: []string{"a", "b"}}},
		"allowed_address_pairs": {PortChange{Pairs: &changed}, Port{MAC: "fa:16:3e:00:00:01", Pairs: []Pair{{Prefix: changed[1].Prefix}, {Prefix: changed[0].Prefix}}}},
	} {
		if got := test.change.dropped(Port{}); got != name {
			t.Errorf("%s: %q is dropped by a cloud that drops it", name, got)
		}
		if got := test.change.dropped(test.done); got != "" {
			t.Errorf("%s: %q is dropped by a cloud that does it", name, got)
		}
	}
}
