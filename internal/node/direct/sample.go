package direct

import (
	"cmp"
	"hash/fnv"
	"net/netip"
	"slices"
)

// sampleSize is the number of nodes that a node probes on its link, and of those that it
// probes in other subnets. All nodes choose differently, so that together they probe all.
const sampleSize = 3

// Peer is a node that is reached without the tunnel, or would be if its packets were not
// dropped.
type Peer struct {
	Name string
	// Addresses of the node, at most one per family.
	Addresses []netip.Addr
	// Routed is true if the node is in another subnet.
	Routed bool
}

// Links are the addresses of this node and its peers.
type Links struct {
	// Own are the node's addresses, at most one per family.
	Own []netip.Addr
	// Pods are addresses of the node's blocks, at most one per family. They may be in use.
	Pods  []netip.Addr
	Peers []Peer
}

// target is a pair of requests to a peer: from this node's own address, and from that of
// a pod.
type target struct {
	peer         string
	routed       bool
	own, pod, to netip.Addr
}

// sample returns the peers to probe: those of Dropped that still exist, so that it shows
// when packets to them pass again, and sampleSize others of each kind.
func sample(node string, peers []Peer, dropped []string) []Peer {
	sorted := slices.SortedFunc(slices.Values(peers), func(a, b Peer) int {
		return cmp.Or(cmp.Compare(rank(node, a.Name), rank(node, b.Name)), cmp.Compare(a.Name, b.Name))
	})
	var out []Peer
	others := map[bool]int{}
	for _, p := range sorted {
		switch {
		case slices.Contains(dropped, p.Name):
		case others[p.Routed] < sampleSize:
			others[p.Routed]++
		default:
			continue
		}
		out = append(out, p)
	}
	return out
}

// rank orders the peers of a node by chance, always in the same way.
func rank(node, peer string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(node + "/" + peer))
	return h.Sum64()
}

// targets returns the requests to the sampled peers, in each family that both nodes have.
func targets(l Links, peers []Peer) []target {
	var out []target
	for _, p := range peers {
		for _, to := range p.Addresses {
			own, pod := ofFamily(l.Own, to), ofFamily(l.Pods, to)
			if own.IsValid() && pod.IsValid() {
				out = append(out, target{peer: p.Name, routed: p.Routed, own: own, pod: pod, to: to})
			}
		}
	}
	return out
}

// beyond returns the names of the peers in other subnets.
func beyond(all []target) map[string]bool {
	out := map[string]bool{}
	for _, t := range all {
		if t.routed {
			out[t.peer] = true
		}
	}
	return out
}

// ofFamily returns the first address of the family of another; an invalid one if there is
// none.
func ofFamily(all []netip.Addr, family netip.Addr) netip.Addr {
	for _, a := range all {
		if a.Is4() == family.Is4() {
			return a
		}
	}
	return netip.Addr{}
}
