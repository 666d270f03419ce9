package slim

import "fairlead.dev/fairlead/api/v1alpha1"

// attachments slims PodAttachments. Strings that many of them have are kept once.
type attachments struct{ words words }

// slim is a cache.TransformFunc. It removes the managed fields of a PodAttachment, and
// replaces strings that most PodAttachments have by one common copy. PodAttachments
// take by far the most memory of the program.
func (s *attachments) slim(o any) (any, error) {
	a, ok := o.(*v1alpha1.PodAttachment)
	if !ok {
		return o, nil
	}
	a.ManagedFields = nil
	own := []*string{&a.Name, (*string)(&a.UID), &a.ResourceVersion, &a.Spec.PodName, (*string)(&a.Spec.PodUID), (*string)(&a.Spec.APIUID)}
	s.words.share(&a.Namespace, &a.Spec.NodeName, (*string)(&a.Spec.NodeUID))
	s.words.share(&a.Spec.Summary.Interfaces)
	for i := range a.Spec.Interfaces {
		iface := &a.Spec.Interfaces[i]
		s.words.share(&iface.Name, &iface.Network, &iface.Driver, &iface.Domain, &iface.Pool)
		s.shareAll(iface.Gateways)
		for j := range iface.Addresses {
			own = append(own, &iface.Addresses[j])
		}
		if b := iface.Binding.Bridge; b != nil {
			s.words.share(&b.Name)
		}
	}
	if sandbox := a.Status.Sandbox; sandbox != nil {
		s.words.share(&sandbox.BootID)
		own = append(own, &sandbox.ID)
	}
	for i := range a.Status.Conditions {
		c := &a.Status.Conditions[i]
		// The conditions Attached and Ready of a record have the same reason and
		// message.
		s.words.share(&c.Type, &c.Reason, &c.Message)
	}
	pack(append(own, &a.Spec.Summary.Addresses)...)
	s.shareAll(a.Finalizers)
	for i := range a.OwnerReferences {
		owner := &a.OwnerReferences[i]
		s.words.share(&owner.APIVersion, &owner.Kind)
		if uid := a.HolderUID(); owner.UID == uid && owner.Name == a.Spec.PodName {
			owner.UID, owner.Name = uid, a.Spec.PodName
		}
	}
	return a, nil
}

func (s *attachments) shareAll(texts []string) {
	for i := range texts {
		s.words.share(&texts[i])
	}
}
