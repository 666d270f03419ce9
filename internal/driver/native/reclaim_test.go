package native

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// The pools that cover the addresses decide how long they wait for an unreachable node,
// not only the pool that the interface names.
func TestReclaimAfterByAddress(t *testing.T) {
	pool := func(name, domain string, after time.Duration, ranges ...string) v1alpha1.IPPool {
		o := v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.IPPoolSpec{Domain: domain, Ranges: ranges}}
		if after > 0 {
			o.Spec.UnreachablePolicy, o.Spec.ReclaimAfter = v1alpha1.UnreachableReclaimAfter, &metav1.Duration{Duration: after}
		}
		return o
	}
	pools := []v1alpha1.IPPool{
		pool("short", "default", time.Minute, "10.0.0.0/24"),
		pool("long", "default", time.Hour, "10.1.0.0/24", "fd00:1::/64"),
		pool("hold", "default", 0, "fd00::/64"),
		pool("wide", "default", 0, "10.0.0.0/16"),
		pool("lab", "lab", time.Minute, "10.0.0.0/8"),
		pool("wrong", "wrong", 0, "10.0.0.1/24"),
		pool("right", "wrong", time.Minute, "10.0.0.0/24"),
	}
	iface := func(pool, domain string, addresses ...string) v1alpha1.Interface {
		return v1alpha1.Interface{Pool: pool, Domain: domain, Addresses: addresses}
	}
	for _, tt := range []struct {
		name       string
		interfaces []v1alpha1.Interface
		want       time.Duration
	}{
		{"the pool that is named", []v1alpha1.Interface{iface("short", "default", "10.0.0.7/24")}, time.Minute},
		{"the longest of two pools", []v1alpha1.Interface{iface("short", "default", "10.0.0.7/24", "10.1.0.7/24")}, time.Hour},
		{"a second address of a pool that holds", []v1alpha1.Interface{iface("short", "default", "10.0.0.7/24", "fd00::7/64")}, 0},
		{"a second interface that holds", []v1alpha1.Interface{iface("short", "default", "10.0.0.7/24"), iface("hold", "default", "fd00::7/64")}, 0},
		{"a second interface that waits longer", []v1alpha1.Interface{iface("short", "default", "10.0.0.7/24"), iface("long", "default", "fd00:1::7/64")}, time.Hour},
		{"no pool named", []v1alpha1.Interface{iface("", "default", "10.1.0.7/32", "fd00:1::7/128")}, time.Hour},
		{"no pool named, one of two holds", []v1alpha1.Interface{iface("", "default", "10.0.0.7/32")}, 0},
		{"another domain", []v1alpha1.Interface{iface("", "lab", "10.0.0.7/32")}, time.Minute},
		{"a pool that is gone, another has it", []v1alpha1.Interface{iface("gone", "lab", "10.0.0.7/32")}, time.Minute},
		{"in no pool any more", []v1alpha1.Interface{iface("short", "default", "10.9.0.7/32")}, 0},
		{"a pool that cannot be read may have it", []v1alpha1.Interface{iface("", "wrong", "10.0.0.7/32")}, 0},
		{"from elsewhere", []v1alpha1.Interface{iface("", "", "10.1.0.7/24")}, 0},
		{"no address", []v1alpha1.Interface{iface("short", "default")}, 0},
		{"no interface", nil, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := reclaimAfter(tt.interfaces, pools); got != tt.want {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}
