package pod

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
)

func naming(pools string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.AnnotationPools: pools}}}
}

func TestPools(t *testing.T) {
	cases := []struct {
		text string
		want []string
		says string
	}{
		{text: "web", want: []string{"web"}},
		{text: "web,overflow", want: []string{"web", "overflow"}},
		{text: " web , over.flow-2 ", want: []string{"web", "over.flow-2"}},
		{text: "", says: `has ""`},
		{text: "web,", says: `has ""`},
		{text: "Web", says: `has "Web", which is no name`},
		{text: "web;overflow", says: `has "web;overflow"`},
		{text: "web,web", says: `has "web" twice`},
		{text: strings.Repeat("a,", 16) + "a", says: "more than 16"},
	}
	for _, tc := range cases {
		t.Run(tc.text, func(t *testing.T) {
			got, err := Pools(naming(tc.text))
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if (err != nil) != (tc.says != "") {
				t.Fatalf("error %v", err)
			}
			if err != nil && (!strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), "annotation fairlead.dev/pools") || !strings.Contains(err.Error(), "web,overflow")) {
				t.Errorf("%q is not in: %v", tc.says, err)
			}
		})
	}
	if got, err := Pools(&corev1.Pod{}); got != nil || err != nil {
		t.Errorf("without the annotation: %v, %v", got, err)
	}
}

func FuzzPools(f *testing.F) {
	f.Add("web,overflow")
	f.Add(" a ,, b")
	f.Fuzz(func(t *testing.T, text string) {
		names, err := Pools(naming(text))
		if (err == nil) != (len(names) > 0) || len(names) > maxPools {
			t.Fatalf("%q: %v", names, err)
		}
		if err != nil {
			return
		}
		again, err := Pools(naming(strings.Join(names, ",")))
		if diff := cmp.Diff(names, again); diff != "" || err != nil {
			t.Fatalf("%v, -want +got:\n%s", err, diff)
		}
	})
}
