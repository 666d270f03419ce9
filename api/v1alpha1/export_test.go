package v1alpha1

import "math/rand/v2"

// Generated returns the nth attachment, valid or not, for a property test.
func Generated(n uint64) *PodAttachment { return maker{rand.New(rand.NewPCG(n, 1))}.attachment() }
