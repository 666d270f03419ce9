package audit

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
)

// damaged returns a cluster with an unreadable record in a block of a pool.
func damaged(text string) Cluster {
	return Cluster{Blocks: []v1alpha1.IPBlock{{
		ObjectMeta: metav1.ObjectMeta{Name: "default.4-0a000000"},
		Spec:       v1alpha1.IPBlockSpec{Domain: "default", CIDR: "10.0.0.0/26", Slots: []string{text}},
	}}}
}

func lan(t *testing.T, name string, ranges ...string) *ipam.Pool {
	t.Helper()
	p, err := ipam.ParsePool(ipam.PoolSpec{Name: name, Ranges: ranges})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A finding that two looks agree on is returned for its pool, until an audit does not
// find it any more.
func TestAuditorConfirms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks, counts := 0, map[string]int{}
		clusters := []Cluster{
			damaged("5 A nonsense"),
			{}, // the first finding was a momentary inconsistency
			damaged("5 A nonsense"), damaged("5 A nonsense"),
			{},
		}
		ctx, cancel := context.WithCancel(t.Context())
		a := NewAuditor(AuditorConfig{
			Read: func(context.Context) (Cluster, error) {
				looks++
				if looks == len(clusters)+1 {
					return Cluster{}, errors.New("no answer")
				}
				return clusters[min(looks, len(clusters))-1], nil
			},
			Count:    func(invariant string, n int) { counts[invariant] = n },
			Interval: time.Hour,
			Synced:   func() bool { return true },
		})
		done := make(chan error)
		go func() { done <- a.Run(ctx) }()
		p, beside := lan(t, "lan", "10.0.0.0-10.0.0.9"), lan(t, "beside", "10.0.0.10-10.0.0.20")
		expect := func(what string, wait time.Duration, known bool, i2 int) {
			t.Helper()
			<-time.After(wait)
			synctest.Wait()
			found, got := a.Of(p)
			if got != known || len(found) != i2 || counts[Explained] != i2 {
				t.Errorf("%s: known %v, found %v, counts %v", what, got, found, counts)
			}
			if other, _ := a.Of(beside); len(other) > 0 {
				t.Errorf("%s: shown of another pool: %v", what, other)
			}
		}
		expect("before the first audit", firstAudit/2, false, 0)
		expect("a moment's inconsistency", firstAudit/2+confirmDelay, true, 0)
		expect("while the second look is waited for", time.Hour, true, 0)
		expect("confirmed", confirmDelay, true, 1)
		expect("mended", time.Hour, true, 0)
		expect("an audit that fails changes nothing", time.Hour, true, 0)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, known := a.Of(p); known {
			t.Error("findings are known after the end of the term")
		}
	})
}

func TestAbout(t *testing.T) {
	p := lan(t, "lan", "10.0.0.0-10.0.0.9")
	got := map[string]bool{}
	for _, f := range []Finding{
		{Domain: "default", Address: "10.0.0.9"},
		{Domain: "default", Address: "10.0.0.10"},
		{Domain: "other", Address: "10.0.0.9"},
		{Domain: "default", Address: "10.0.0.0/26"},
		{Domain: "default", Address: "10.0.0.64/26"},
		{Domain: "default", Address: "pool lan"},
		{Domain: "default", Address: "pool beside"},
		{Domain: "default", Address: "what cannot be read"},
	} {
		got[f.Domain+" "+f.Address] = about(f, p)
	}
	want := map[string]bool{
		"default 10.0.0.9": true, "default 10.0.0.10": false, "other 10.0.0.9": false,
		"default 10.0.0.0/26": true, "default 10.0.0.64/26": false,
		"default pool lan": true, "default pool beside": false, "default what cannot be read": true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
