package pod

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// launcherPod returns a launcher as KubeVirt makes it. migration is the UID of the
// migration whose target it is; empty for none.
func launcherPod(instance, uid, migration string) *corev1.Pod {
	labels := map[string]string{"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": uid, "vm.kubevirt.io/name": "vm", "vmi.kubevirt.io/id": instance}
	if migration != "" {
		labels["kubevirt.io/migrationJobUID"] = migration
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "virt-launcher-" + instance + "-x7k2p", Labels: labels,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: instance, UID: types.UID(uid), Controller: new(true)}},
	}}
}

// A pod is a launcher only if the controller reference and the labels agree. kubevirt#17869:
// the host name is no identity.
func TestLauncherOf(t *testing.T) {
	instance := metav1.OwnerReference{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: "db.prod", UID: "u1"}
	cases := []struct {
		name   string
		change func(*corev1.Pod)
		want   Launcher
	}{
		{name: "the first", want: Launcher{Instance: instance}},
		{name: "a target", change: func(p *corev1.Pod) { p.Labels["kubevirt.io/migrationJobUID"] = "m1" }, want: Launcher{Instance: instance, Migration: "m1"}},
		{name: "before the newer label", change: func(p *corev1.Pod) { delete(p.Labels, "vmi.kubevirt.io/id") }, want: Launcher{Instance: instance}},
		{name: "without the deprecated label", change: func(p *corev1.Pod) { delete(p.Labels, "vm.kubevirt.io/name") }, want: Launcher{Instance: instance}},
		{name: "labels alone", change: func(p *corev1.Pod) { p.OwnerReferences = nil }},
		{name: "the owner alone", change: func(p *corev1.Pod) { p.Labels = nil }},
		{name: "an owner that does not control it", change: func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil }},
		{name: "an owner of another group", change: func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion = "example.com/v1" }},
		{name: "an owner of another kind", change: func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "VirtualMachine" }},
		{name: "the label of another instance", change: func(p *corev1.Pod) { p.Labels["kubevirt.io/created-by"] = "u2" }},
		{name: "no UID at all", change: func(p *corev1.Pod) { p.OwnerReferences[0].UID, p.Labels["kubevirt.io/created-by"] = "", "" }},
		{name: "another application", change: func(p *corev1.Pod) { p.Labels["kubevirt.io"] = "virt-handler" }},
		{name: "a name that is none", change: func(p *corev1.Pod) { p.OwnerReferences[0].Name = "a/b" }},
	}
	for _, tc := range cases {
		p := launcherPod("db.prod", "u1", "")
		if tc.change != nil {
			tc.change(p)
		}
		got, ok := LauncherOf(p)
		if diff := cmp.Diff(tc.want, got); diff != "" || ok != (tc.want != Launcher{}) {
			t.Errorf("%s: %v, -want +got:\n%s", tc.name, ok, diff)
		}
	}
}

// A machine migrates between launchers of one instance. After a restart the instance is
// another, with the same name.
func TestMigratesFrom(t *testing.T) {
	of := func(instance, uid, migration string) Launcher {
		l, _ := LauncherOf(launcherPod(instance, uid, migration))
		return l
	}
	cases := []struct {
		name         string
		target, from Launcher
		want         bool
	}{
		{"from the first", of("db", "u1", "m1"), of("db", "u1", ""), true},
		{"from the target of the last migration", of("db", "u1", "m2"), of("db", "u1", "m1"), true},
		{"the source is no target", of("db", "u1", ""), of("db", "u1", "m1"), false},
		{"two targets of one migration", of("db", "u1", "m1"), of("db", "u1", "m1"), false},
		{"after a restart", of("db", "u2", "m1"), of("db", "u1", ""), false},
		{"another machine", of("db2", "u2", "m1"), of("db", "u1", ""), false},
		{"another machine with the UID", of("db2", "u1", "m1"), of("db", "u1", ""), false},
		{"no launchers", Launcher{}, Launcher{}, false},
	}
	for _, tc := range cases {
		if got := tc.target.MigratesFrom(tc.from); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}
