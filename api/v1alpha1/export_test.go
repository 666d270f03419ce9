package v1alpha1

import "math/rand/v2"

// Generated is the nth attachment that a property is tried on, right or not.
func Generated(n uint64) *PodAttachment { return maker{rand.New(rand.NewPCG(n, 1))}.attachment() }
