package slim

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// A node chooses the messages of its conditions: long ones are not kept beyond their object.
func TestLongWordsAreNotKept(t *testing.T) {
	var w words
	for n := range 100 {
		long, short := fmt.Sprint(n, strings.Repeat("x", maxWord)), fmt.Sprint(n)
		w.share(&long, &short)
		if got := w.of([]byte(long)); got != long {
			t.Fatalf("%q became %q", long, got)
		}
	}
	if n := len(w.known); n != 100 {
		t.Errorf("the table has %d words, want the 100 short ones", n)
	}
}

// A tenant chooses the finalizers of a claim, which nobody reads from the cache.
func TestFinalizersOfClaimsAreNotKept(t *testing.T) {
	claim := &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Name: "db", Finalizers: []string{"example.com/" + strings.Repeat("x", 200)}}}
	o, err := slimOther(claim)
	if err != nil {
		t.Fatal(err)
	}
	if f := o.(*v1alpha1.IPClaim).Finalizers; len(f) > 0 {
		t.Errorf("the cache keeps %d finalizers", len(f))
	}
}
