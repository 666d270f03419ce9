package wiring

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

func TestPlans(t *testing.T) {
	subnet := map[string]cloud.Subnet{}
	for name, prefix := range map[string]string{"a4": "10.8.0.0/24", "b4": "10.9.0.0/24", "a6": "fd08::/64", "b6": "fd09::/64"} {
		subnet[name] = cloud.Subnet{ID: name, Prefix: netip.MustParsePrefix(prefix)}
	}
	of := func(names string) (out []cloud.Subnet) {
		for name := range strings.FieldsSeq(names) {
			out = append(out, subnet[name])
		}
		return out
	}
	for _, tc := range []struct{ name, chosen, all, requested, want, err string }{
		{name: "Neutron chooses", all: "a4 a6", want: "[]"},
		{name: "one subnet", chosen: "a4", all: "a4 b4", want: "[a4]"},
		{name: "one after the other", chosen: "b4 a4", all: "a4 b4", want: "[b4] [a4]"},
		{name: "both families", chosen: "a4 a6", all: "a4 a6", want: "[a4 a6]"},
		{name: "several of both", chosen: "a4 b4 a6 b6", all: "a4 b4 a6 b6", want: "[a4 a6] [b4 a6] [a4 b6] [b4 b6]"},
		{name: "a requested address", all: "a4 b4", requested: "10.9.0.7", want: "[b4=10.9.0.7]"},
		{name: "a requested address of two families", all: "a4 a6", requested: "10.8.0.7", want: "[a4=10.8.0.7 a6]"},
		{name: "both requested", all: "a4 a6", requested: "fd08::7 10.8.0.7", want: "[a6=fd08::7 a4=10.8.0.7]"},
		{name: "not of the chosen subnets", chosen: "a4", all: "a4 b4", requested: "10.9.0.7", err: "requested address 10.9.0.7: no subnet of the network has it: must be in [10.8.0.0/24]"},
		{name: "no subnet", requested: "10.9.0.7", err: "must be in []"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var requested []netip.Addr
			for a := range strings.FieldsSeq(tc.requested) {
				requested = append(requested, netip.MustParseAddr(a))
			}
			got, err := Plans(of(tc.chosen), of(tc.all), requested)
			if tc.err != "" {
				if driver.Result(err) != "Invalid" || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("error %v, want %s", err, tc.err)
				}
				return
			}
			var all []string
			for _, p := range got {
				var one []string
				for _, a := range p {
					text := a.Subnet
					if a.Addr.IsValid() {
						text += "=" + a.Addr.String()
					}
					one = append(one, text)
				}
				all = append(all, fmt.Sprint(one))
			}
			if diff := cmp.Diff(tc.want, strings.Join(all, " ")); err != nil || diff != "" {
				t.Errorf("%v, -want +got:\n%s", err, diff)
			}
		})
	}
	many := make([]cloud.Subnet, 16)
	for i := range many {
		many[i] = cloud.Subnet{ID: fmt.Sprint(i), Prefix: netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/16", i))}
	}
	if got, err := Plans(many, many, nil); err != nil || len(got) != maxPlans {
		t.Errorf("%d plans, %v", len(got), err)
	}
}
