package v1alpha1

import "k8s.io/apimachinery/pkg/types"

// Pod is the namespace and name of the pod that the attachment is of.
func (a *PodAttachment) Pod() types.NamespacedName {
	key := types.NamespacedName{Namespace: a.Namespace, Name: a.Spec.PodName}
	if a.Spec.PodNamespace != "" {
		key.Namespace = a.Spec.PodNamespace
	}
	return key
}

// HolderUID is the UID under which the pod's addresses were taken: its own UID in
// the API. Attachments of static pods that were written before there was a field for
// it were taken under PodUID.
func (a *PodAttachment) HolderUID() types.UID {
	if a.Spec.APIUID != "" {
		return a.Spec.APIUID
	}
	return a.Spec.PodUID
}

// OwnUID is the pod's own UID in the API. Attachments of static pods that were
// written before there was a field for it have it in the reference to their owner,
// which the controller wrote.
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
