package namespace

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/internal/openstack/cloud"
)

func TestMissing(t *testing.T) {
	pools := []cloud.SubnetPool{{ID: "p4", Name: "v4"}, {ID: "p6", Name: "v6", IPv6: true}}
	subnet := func(name, prefix string, size uint64) cloud.Subnet {
		return cloud.Subnet{ID: "id-" + name, Name: "net/" + name, Prefix: netip.MustParsePrefix(prefix), Size: size}
	}
	one, other, six := subnet("ipv4-0", "10.0.0.0/29", 5), subnet("ipv4-1", "10.0.0.8/29", 5), subnet("ipv6-0", "fd00::/64", 1<<63)
	for _, c := range []struct {
		name  string
		pools []cloud.SubnetPool
		own   []cloud.Subnet
		used  map[string]uint64
		want  []string
	}{
		{"both", pools, nil, nil, []string{"net/ipv4-0 p4", "net/ipv6-0 p6"}},
		{"one family", pools[:1], nil, nil, []string{"net/ipv4-0 p4"}},
		{"the second", pools, []cloud.Subnet{one}, nil, []string{"net/ipv6-0 p6"}},
		{"none", pools, []cloud.Subnet{one, six}, nil, nil},
		{"room", pools, []cloud.Subnet{one, six}, map[string]uint64{one.ID: 4}, nil},
		{"full", pools, []cloud.Subnet{one, six}, map[string]uint64{one.ID: 5, six.ID: 5}, []string{"net/ipv4-1 p4"}},
		{"room in the other", pools, []cloud.Subnet{one, other, six}, map[string]uint64{one.ID: 5, other.ID: 1}, nil},
		{"a free name", pools, []cloud.Subnet{other, six}, map[string]uint64{other.ID: 6}, []string{"net/ipv4-0 p4"}},
	} {
		specs, err := missing("net", c.pools, c.own, c.used)
		var got []string
		for _, s := range specs {
			got = append(got, s.Name+" "+s.Pool)
		}
		if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", c.name, err, diff)
		}
	}
	var many []cloud.Subnet
	used := map[string]uint64{}
	for n := range maxSubnets {
		s := subnet(fmt.Sprint("ipv4-", n), "10.0.0.0/29", 1)
		many, used[s.ID] = append(many, s), 1
	}
	if _, err := missing("net", pools[:1], many, used); !errors.Is(err, cloud.ErrLimit) || !strings.Contains(err.Error(), "shorter default prefix length") {
		t.Errorf("too many subnets: %v", err)
	}
}

// The subnets of others in a network do not count.
func TestOwnSubnets(t *testing.T) {
	var all []cloud.Subnet
	for i, name := range []string{"net/ipv4-10", "net/ipv6-0", "net/ipv5-0", "net/ipv4-", "net/ipv4-01", "net/ipv4--1", "net2/ipv4-0", "ipv4-0", "net/ipv40", "net/ipv4-0"} {
		all = append(all, cloud.Subnet{Name: name, Prefix: netip.MustParsePrefix(fmt.Sprintf("10.0.%d.0/24", 20-i))})
	}
	var got []string
	for _, s := range ownSubnets("net", all) {
		got = append(got, s.Name)
	}
	if diff := cmp.Diff([]string{"net/ipv4-0", "net/ipv6-0", "net/ipv4-10"}, got); diff != "" {
		t.Errorf("own subnets (-want +got):\n%s", diff)
	}
}

// Names of networks in the cloud are anybody's until they are read.
func FuzzReadName(f *testing.F) {
	for _, name := range []string{"fairlead/east/blue/" + blueUID, "fairlead/east/blue/x", "fairlead/west/blue/x", "fairlead/east//", "fairlead/east/a/b/c", "fairlead/east/-/..", ""} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		namespace, uid, ok := readName("east", name)
		if !ok {
			return
		}
		if again := cloudName("east", namespace, uid); again != name {
			t.Errorf("%q is read as %q", name, again)
		}
		if n := recordName(namespace, uid); len(n) > 253 || strings.ContainsAny(n, "/ .") || !strings.HasPrefix(n, namespace+"-") {
			t.Errorf("record %q of %q", n, name)
		}
	})
}

func TestNames(t *testing.T) {
	uid := types.UID(blueUID)
	if got := recordName("blue", uid); got != blue {
		t.Errorf("record %s, want %s", got, blue)
	}
	if got := len(cloudName(strings.Repeat("c", 40), strings.Repeat("n", 63), uid)); got > 200 {
		t.Errorf("a name of %d characters has no room for its subnets in 255", got)
	}
}
