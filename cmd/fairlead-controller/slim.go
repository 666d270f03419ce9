package main

import (
	"context"
	"runtime/debug"
	"time"
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

// giveBackEvery is how often memory is given back: as often as Go collects
// garbage in a program that is idle.
const giveBackEvery = 2 * time.Minute

// giveBack gives the system back the memory that is not used any more: what
// reading all objects for the first time took beside what is kept of them, and
// then what each burst of pods took. Go alone keeps up to twice of what is in use.
func giveBack(caches cache.Cache) everywhere {
	return func(ctx context.Context) error {
		if !caches.WaitForCacheSync(ctx) {
			return nil
		}
		tick := time.NewTicker(giveBackEvery)
		defer tick.Stop()
		for {
			debug.FreeOSMemory()
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
		}
	}
}
