package plug

// The kinds of this build, for the tests that each of them passes.
func BridgeKind(k *Kernel) Kind    { return bridge{k} }
func AddressOnlyKind(*Kernel) Kind { return addressOnly{} }
