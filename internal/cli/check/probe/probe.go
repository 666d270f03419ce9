// Package probe is the part of `fairlead check` that runs in its pods: a server that
// answers, and probes that ask the servers of other pods.
package probe

// Kind is the kind of a probe.
type Kind string

// The kinds of probes.
const (
	// TCP connects to a server and reads its answer.
	TCP Kind = "tcp"
	// UDP sends a small datagram to a server and reads its answer.
	UDP Kind = "udp"
	// Size is UDP with one packet of a size that may not be fragmented on the way.
	Size Kind = "size"
	// Connect connects to any program by TCP.
	Connect Kind = "connect"
	// DNS resolves a name.
	DNS Kind = "dns"
	// Denied passes when no connection to a server comes about.
	Denied Kind = "denied"
	// Forged sends small datagrams with the source Forged, and others with Source. It passes
	// when the server has only those with Source. It needs the capability NET_RAW.
	Forged Kind = "forged"
)

// Probe is one probe.
type Probe struct {
	Kind Kind `json:"kind"`
	// Address is "address:port", for Connect "host:port", for DNS a name.
	Address string `json:"address"`
	// Size of the IP packet, for the kind Size; 0 is the MTU of the interface.
	Size int `json:"size,omitempty"`
	// Name of the server that has to answer; empty for any.
	Name string `json:"name,omitempty"`
	// Source is the address that the server has to see; empty for any. For the kind Forged it
	// is an address of the asking pod.
	Source string `json:"source,omitempty"`
	// Forged is the address of another pod, for the kind Forged.
	Forged string `json:"forged,omitempty"`
	// token marks the datagrams of a probe of the kind Forged.
	token string
}

// Plan is a number of probes, which run at the same time.
type Plan struct {
	// Patience is the time within which each probe has to pass once, in milliseconds.
	Patience int     `json:"patience"`
	Probes   []Probe `json:"probes"`
}

// Outcome is the outcome of a probe.
type Outcome struct {
	Passed bool `json:"passed"`
	// Untried is true if the pod cannot make the probe, for the reason in Problem.
	Untried bool `json:"untried,omitempty"`
	// Problem is the last problem of a probe that has not passed.
	Problem string `json:"problem,omitempty"`
	// Source is the address that the server saw, if it is another than Probe.Source.
	Source string `json:"source,omitempty"`
	// Size of the packet that was sent, for the kind Size.
	Size int `json:"size,omitempty"`
}

// answer is the answer of a server.
type answer struct {
	Name   string `json:"name"`   // of the server
	Source string `json:"source"` // the address from which it was asked
	// Forged is the source of the datagram with the mark forged and the same token; empty if
	// none has arrived. Full is true if the server records no more of them.
	Forged string `json:"forged,omitempty"`
	Full   bool   `json:"full,omitempty"`
}

// question begins each datagram to a server. Its answer begins otherwise, so that no two
// servers answer each other.
const question = "fairlead probe?"

// After the question, datagrams of the kind Forged have one of these marks and a token.
const (
	markForged = 'f' // of a forged source: the server records it, and sends no answer
	markOwn    = 'o' // of the pod's own address: the answer has the record
	tokenSize  = 26  // of crypto/rand.Text
)

// smallest is the size of the smallest datagram that is answered: an answer is not larger
// than the question, so that a forged source gains nothing.
const smallest = 256
