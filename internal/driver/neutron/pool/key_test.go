package pool

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation"

	"fairlead.dev/fairlead/api/v1alpha1"
)

func TestNamesOfPools(t *testing.T) {
	long := Key{Node: strings.Repeat("n", 149) + "." + strings.Repeat("x", 100), Network: "pods"}
	if name := long.name(7); len(name) > 163 || !strings.HasPrefix(name, strings.Repeat("n", 149)+"-") || !strings.HasSuffix(name, "-7") {
		t.Errorf("name %s", name)
	}
	dotted := Key{Node: strings.Repeat("n", 62) + ".x", Network: "pods"}
	pool, _ := dotted.apply("n", nil, nil)
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
