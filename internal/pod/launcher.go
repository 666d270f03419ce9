package pod

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Labels and kinds of KubeVirt (kubevirt.io/api/core/v1).
const (
	// InstanceKind is the kind of the owner of a pod in which KubeVirt runs a virtual
	// machine; the owner's name is the machine's. A machine that is started again has a
	// new instance.
	InstanceKind = "VirtualMachineInstance"
	// LabelInstance has the UID of the instance.
	LabelInstance = "kubevirt.io/created-by"
	// labelLauncher has the value launcherApp on every launcher.
	labelLauncher, launcherApp = "kubevirt.io", "virt-launcher"
	// labelMigration has the UID of the migration whose target the pod is or was.
	labelMigration = "kubevirt.io/migrationJobUID"
)

// Launcher is a pod in which KubeVirt runs a virtual machine.
type Launcher struct {
	// Instance is the machine's VirtualMachineInstance. While the machine migrates, two
	// pods run for it.
	Instance metav1.OwnerReference
	// Migration is the UID of the migration whose target the pod is or was; empty for
	// the first launcher of the instance.
	Migration types.UID
}

// LauncherOf returns the launcher that a pod is; ok is false for any other pod. The pod's
// controller is a VirtualMachineInstance, and its labels agree. A user who may create pods
// can forge all of these, but only in a namespace of hers.
func LauncherOf(p *corev1.Pod) (l Launcher, ok bool) {
	owner := metav1.GetControllerOfNoCopy(p)
	if owner == nil || !isInstance(owner) || owner.UID == "" || !claimName(owner.Name) ||
		p.Labels[labelLauncher] != launcherApp || p.Labels[LabelInstance] != string(owner.UID) {
		return Launcher{}, false
	}
	return Launcher{
		Instance:  metav1.OwnerReference{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID},
		Migration: types.UID(p.Labels[labelMigration]),
	}, true
}

// MigratesFrom reports whether a machine may migrate from one launcher to this one: both
// are of one instance, and this one is the target of a migration that the other is not.
func (l Launcher) MigratesFrom(from Launcher) bool {
	return l.Migration != "" && l.Migration != from.Migration &&
		l.Instance.UID == from.Instance.UID && l.Instance.Name == from.Instance.Name
}

func isInstance(owner *metav1.OwnerReference) bool {
	return owner.Kind == InstanceKind && strings.HasPrefix(owner.APIVersion, "kubevirt.io/")
}
