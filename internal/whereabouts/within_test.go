package whereabouts

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"fairlead.dev/fairlead/api/v1alpha1"
)

func TestPoolsOfARange(t *testing.T) {
	for _, tc := range []struct {
		section string
		ranges  []string
		edges   bool
		holds   bool
		touches bool
	}{
		{`"range":"10.0.0.0/24"`, []string{"10.0.0.0/24"}, false, true, true},
		{`"range":"10.0.0.0/24"`, []string{"10.0.0.0/24"}, true, false, true},
		{`"range":"10.0.0.0/24"`, []string{"10.0.0.128/25"}, false, true, true},
		{`"range":"10.0.0.0/24"`, []string{"10.0.0.8-10.0.0.12/24", "10.0.0.99"}, false, true, true},
		{`"range":"10.0.0.0/24"`, []string{"10.0.0.8-10.0.1.12"}, false, false, true},
		{`"range":"10.0.0.0/24"`, []string{"10.0.0.0/16"}, false, false, true},
		{`"range":"10.0.0.0/24"`, []string{"10.0.1.0/24"}, false, false, false},
		{`"range":"10.0.0.0/24"`, []string{"10.0.0.0/25", "fd00::/64"}, false, false, true},
		{`"range":"10.0.0.0/24","range_start":"10.0.0.10"`, []string{"10.0.0.0/24"}, false, false, true},
		{`"range":"10.0.0.0/24","range_start":"10.0.0.10"`, []string{"10.0.0.10-10.0.0.254/24"}, false, true, true},
		{`"range":"fd00::/64"`, []string{"fd00::/64"}, false, true, true},
		{`"range":"fd00::/64"`, []string{"10.0.0.0/24"}, false, false, false},
		{`"range":"10.0.0.0/24"`, []string{"x"}, false, false, false},
		{`"range":"10.0.0.0/24"`, nil, false, false, false},
	} {
		c, _, err := Parse([]byte(`{"type":"whereabouts",`+tc.section+"}"), nil)
		if err != nil {
			t.Fatal(err)
		}
		spec := v1alpha1.IPPoolSpec{Ranges: tc.ranges, UseEdges: tc.edges}
		if got := c.Ranges[0].Holds(spec); got != tc.holds {
			t.Errorf("%s holds %v, edges %v: %v, want %v", tc.section, tc.ranges, tc.edges, got, tc.holds)
		}
		if got := c.Ranges[0].Overlaps(spec); got != tc.touches {
			t.Errorf("%s overlaps %v: %v, want %v", tc.section, tc.ranges, got, tc.touches)
		}
	}
}

// Two namespaces never share a domain of their own, whatever the names of their networks,
// and every result is a valid domain.
func TestNamespaceDomain(t *testing.T) {
	valid := regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	seen := map[string]string{}
	long := strings.Repeat("a", 42)
	for _, namespace := range []string{"a", "b", "a-b", long, long + "-x", long + "-y", strings.Repeat("z", 63)} {
		for _, name := range []string{"", "default", "shop", "nad-a", "b", "b/", NamespaceDomain("a", ""), strings.Repeat("n", 90)} {
			got := NamespaceDomain(namespace, name)
			is := fmt.Sprintf("%q of %s", name, namespace)
			if other := seen[got]; other != "" {
				t.Errorf("%s and %s share %s", is, other, got)
			}
			if !valid.MatchString(got) {
				t.Errorf("%s: %q is no domain", is, got)
			}
			seen[got] = is
		}
	}
}
