package main

import (
	"context"
	"runtime/debug"
	"unique"

	"sigs.k8s.io/controller-runtime/pkg/cache"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// slimAttachment keeps a PodAttachment without its managed fields, and with one
// copy, in all of them together, of the words that most of them have. They are
// by far the most of what the program remembers.
func slimAttachment(o any) (any, error) {
	a, ok := o.(*v1alpha1.PodAttachment)
	if !ok {
		return o, nil
	}
	a.ManagedFields = nil
	share(&a.Namespace, &a.Spec.NodeName)
	shareAll(a.Finalizers)
	for i := range a.OwnerReferences {
		owner := &a.OwnerReferences[i]
		share(&owner.APIVersion, &owner.Kind)
		if owner.UID == a.Spec.PodUID && owner.Name == a.Spec.PodName {
			owner.UID, owner.Name = a.Spec.PodUID, a.Spec.PodName
		}
	}
	share(&a.Spec.Summary.Interfaces)
	for i := range a.Spec.Interfaces {
		iface := &a.Spec.Interfaces[i]
		share(&iface.Name, &iface.Network, &iface.Driver, &iface.Domain, &iface.Pool)
		shareAll(iface.Gateways)
		if b := iface.Binding.Bridge; b != nil {
			share(&b.Name)
		}
	}
	if s := a.Status.Sandbox; s != nil {
		share(&s.BootID)
	}
	for i := range a.Status.Conditions {
		c := &a.Status.Conditions[i]
		// Attached and Ready of one record say the same.
		share(&c.Type, &c.Reason, &c.Message)
	}
	return a, nil
}

// share replaces strings by the copy that all equal ones have.
func share(texts ...*string) {
	for _, s := range texts {
		*s = unique.Make(*s).Value()
	}
}

func shareAll(texts []string) {
	for i := range texts {
		share(&texts[i])
	}
}

// giveBackLists gives the system back what reading all objects for the first time
// took beside what is kept of them. Go would do so by itself, minutes later.
func giveBackLists(caches cache.Cache) everywhere {
	return func(ctx context.Context) error {
		if caches.WaitForCacheSync(ctx) {
			debug.FreeOSMemory()
		}
		return nil
	}
}
