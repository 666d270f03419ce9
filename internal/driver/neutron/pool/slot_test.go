package pool

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/util/validation"

	"fairlead.dev/fairlead/api/v1alpha1"
)

var comparePrefixes = []cmp.Option{cmpopts.EquateComparable(netip.Prefix{}), cmp.AllowUnexported(slot{})}

func TestSlot(t *testing.T) {
	for text, want := range map[string]slot{
		"3 ready 0f1e fa:16:3e:00:00:01 10.8.0.5/24,fd08::5/64 0 -": {
			n: 3, state: ready, Port: Port{ID: "0f1e", MAC: "fa:16:3e:00:00:01", Addresses: []netip.Prefix{netip.MustParsePrefix("10.8.0.5/24"), netip.MustParsePrefix("fd08::5/64")}},
		},
		"63 used 0f1e fa:16:3e:00:00:01 10.8.0.5/24 12 br-pods uid-1 default/web/eth0 default default": {
			n: 63, state: used, Port: Port{ID: "0f1e", MAC: "fa:16:3e:00:00:01", Addresses: []netip.Prefix{netip.MustParsePrefix("10.8.0.5/24")}, VLAN: 12, Bridge: "br-pods"},
			holder: Holder{UID: "uid-1", Namespace: "default", Pod: "web", Interface: "eth0", Network: "default", Default: true},
		},
	} {
		got, err := parseSlot(text)
		if diff := cmp.Diff(want, got, comparePrefixes...); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", text, err, diff)
		}
		if got.String() != text {
			t.Errorf("%q is written as %q", text, got)
		}
	}
}

func TestDamagedSlot(t *testing.T) {
	const good = "3 ready 0f1e fa:16:3e:00:00:01 10.8.0.5/24 0 -"
	for want, text := range map[string]string{
		"6 fields: must be 7":          strings.TrimSuffix(good, " -"),
		`number "64": must be 0 to 63`: strings.Replace(good, "3", "64", 1),
		`number "x"`:                   strings.Replace(good, "3", "x", 1),
		`state "free"`:                 strings.Replace(good, "ready", "free", 1),
		"7 fields: must be 11":         strings.Replace(good, "ready", "used", 1),
		"11 fields: must be 11 if it":  good + " uid a/b/c default default",
		"the ID of the port is empty":  strings.Replace(good, "0f1e", "", 1),
		`MAC "fa:16"`:                  strings.Replace(good, "fa:16:3e:00:00:01", "fa:16", 1),
		`address "10.8.0.5"`:           strings.Replace(good, "/24", "", 1),
		`VLAN "4095"`:                  strings.Replace(good, " 0 -", " 4095 -", 1),
		`bridge ""`:                    strings.Replace(good, " -", " ", 1),
		"the pod must be as":           strings.Replace(good, "ready", "used", 1) + " uid a/b default default",
	} {
		if got, err := parseSlot(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v, want an error with %q", text, got, err, want)
		}
	}
}

// A text that is read is written as it was, and never ends the process.
func FuzzSlot(f *testing.F) {
	f.Add("3 ready 0f1e fa:16:3e:00:00:01 10.8.0.5/24,fd08::5/64 0 -")
	f.Add("63 used 0f1e fa:16:3e:00:00:01 10.8.0.5/24 12 br-pods uid-1 default/web/eth0 default further")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseSlot(text)
		if err != nil {
			return
		}
		again, err := parseSlot(s.String())
		if diff := cmp.Diff(s, again, comparePrefixes...); err != nil || diff != "" {
			t.Errorf("%q: %v (-first +again):\n%s", text, err, diff)
		}
	})
}

func TestNamesOfPools(t *testing.T) {
	long := Key{Node: strings.Repeat("n", 149) + "." + strings.Repeat("x", 100), Network: "pods"}
	if name := long.name(7); len(name) > 163 || !strings.HasPrefix(name, strings.Repeat("n", 149)+"-") || !strings.HasSuffix(name, "-7") {
		t.Errorf("name %s", name)
	}
	dotted := &entry{key: Key{Node: strings.Repeat("n", 62) + ".x", Network: "pods"}, name: "n"}
	pool, _ := dotted.apply(nil, nil)
	if problems := validation.IsValidLabelValue(pool.Labels[v1alpha1.LabelNode]); len(problems) > 0 {
		t.Errorf("label %q: %v", pool.Labels[v1alpha1.LabelNode], problems)
	}
	seen := map[string]Key{}
	for _, k := range []Key{
		{Node: "a", Network: "pods"},
		{Node: "a", Host: "b", Network: "pods"},
		{Node: "a", Project: "b", Network: "pods"},
		{Node: "a", Network: "other"},
		{Node: "a", Network: "pods", Subnets: []string{"a", "b"}},
		{Node: "a", Network: "pods", Subnets: []string{"b", "a"}},
		{Node: "a", Network: "pods", Groups: []string{"a", "b"}},
		{Node: "a", Network: "pods", PortSecurityOff: true},
	} {
		if has, ok := seen[k.name(0)]; ok {
			t.Errorf("%v and %v are both %s", has, k, k.name(0))
		}
		seen[k.name(0)] = k
		spec := k.spec()
		if diff := cmp.Diff(k, keyOf(&spec)); diff != "" {
			t.Errorf("key of its spec (-want +got):\n%s", diff)
		}
	}
}
