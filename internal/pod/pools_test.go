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

func TestAdditionalPools(t *testing.T) {
	const ours, kuryrs = v1alpha1.AnnotationAdditionalPools, AnnotationAdditionalSubnets
	for _, tc := range []struct {
		name string
		with map[string]string
		want []string
		says []string
	}{
		{name: "none"},
		{name: "one", with: map[string]string{ours: "storage"}, want: []string{"storage"}},
		{name: "several", with: map[string]string{ours: " storage , backup"}, want: []string{"storage", "backup"}},
		{name: "a JSON list", with: map[string]string{ours: ` ["storage", "backup"]`}, want: []string{"storage", "backup"}},
		{name: "Kuryr's", with: map[string]string{kuryrs: `["5f2a1c1e-0e5c-4c68-9d3c-6f0d5d5c9a11"]`}, want: []string{"5f2a1c1e-0e5c-4c68-9d3c-6f0d5d5c9a11"}},
		{name: "an empty text", with: map[string]string{ours: " "}},
		{name: "an empty list", with: map[string]string{kuryrs: "[]"}},
		{name: "both", with: map[string]string{ours: "storage", kuryrs: "storage"}, says: []string{ours, kuryrs, "leave one of them out"}},
		{name: "a name that is none", with: map[string]string{ours: "No Pool"}, says: []string{ours, `"No Pool"`, "storage,backup"}},
		{name: "a name that is none, in a list", with: map[string]string{kuryrs: `["a/b"]`}, says: []string{kuryrs, `"a/b"`, `[\"storage\",\"backup\"]`}},
		{name: "twice", with: map[string]string{ours: "a,a"}, says: []string{`"a" twice`}},
		{name: "no list of texts", with: map[string]string{ours: `[{"name":"a"}]`}, says: []string{"no JSON list of texts"}},
		{name: "no end", with: map[string]string{ours: `["a"`}, says: []string{"no JSON list of texts"}},
		{name: "too many", with: map[string]string{ours: strings.Repeat("a,", 16) + "a"}, says: []string{"more than 16"}},
		{name: "too many in a list", with: map[string]string{ours: "[" + strings.Repeat(`"a",`, 16) + `"a"]`}, says: []string{"more than 16"}},
		{name: "too long", with: map[string]string{kuryrs: strings.Repeat("a", 9<<10)}, says: []string{kuryrs, "8192 bytes"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := AdditionalPools(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: tc.with}})
			if diff := cmp.Diff(tc.want, got); diff != "" || (err != nil) != (len(tc.says) > 0) {
				t.Errorf("error %v, -want +got:\n%s", err, diff)
			}
			for _, want := range tc.says {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in: %v", want, err)
				}
			}
		})
	}
}

func FuzzAdditionalPools(f *testing.F) {
	f.Add("storage,backup")
	f.Add(`["storage", " backup "]`)
	f.Fuzz(func(t *testing.T, text string) {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.AnnotationAdditionalPools: text}}}
		names, err := AdditionalPools(p)
		if len(names) > maxPools || err != nil && names != nil {
			t.Fatalf("%q: %v, %v", text, names, err)
		}
		p.Annotations[v1alpha1.AnnotationAdditionalPools] = strings.Join(names, ",")
		again, err := AdditionalPools(p)
		if diff := cmp.Diff(names, again); diff != "" || err != nil {
			t.Fatalf("%v, -want +got:\n%s", err, diff)
		}
	})
}
