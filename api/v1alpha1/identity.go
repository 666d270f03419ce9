package v1alpha1

import (
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Pod returns the namespace and name of the attachment's pod.
func (a *PodAttachment) Pod() types.NamespacedName {
	key := types.NamespacedName{Namespace: a.Namespace, Name: a.Spec.PodName}
	if a.Spec.PodNamespace != "" {
		key.Namespace = a.Spec.PodNamespace
	}
	return key
}

// HolderUID returns the UID under which the pod's addresses were taken: the pod's own UID
// in the API. For attachments of static pods from before the field APIUID existed it is
// PodUID.
func (a *PodAttachment) HolderUID() types.UID {
	if a.Spec.APIUID != "" {
		return a.Spec.APIUID
	}
	return a.Spec.PodUID
}

// OwnUID returns the pod's own UID in the API. Attachments of static pods from before the
// field APIUID existed have it in their owner reference, which the controller wrote.
func (a *PodAttachment) OwnUID() types.UID {
	if a.Spec.APIUID != "" {
		return a.Spec.APIUID
	}
	for _, o := range a.OwnerReferences {
		if o.Kind == "Pod" && o.APIVersion == "v1" && o.Name == a.Spec.PodName {
			return o.UID
		}
	}
	return a.Spec.PodUID
}

// Port returns the ID of the port in OpenStack Neutron that a binding has; empty if it has
// none.
func (b Binding) Port() string {
	switch {
	case b.OVS != nil:
		return b.OVS.PortID
	case b.VLAN != nil:
		return b.VLAN.PortID
	case b.Macvlan != nil:
		return b.Macvlan.PortID
	}
	return ""
}

// OneLine joins texts with commas, for a column of kubectl. If the result would exceed
// most bytes, it omits the last texts and ends with ",...".
func OneLine(texts []string, most int) string {
	const more = ",..."
	all := strings.Join(texts, ",")
	if len(all) <= most {
		return all
	}
	return all[:max(strings.LastIndexByte(all[:most-len(more)+1], ','), 0)] + more
}
