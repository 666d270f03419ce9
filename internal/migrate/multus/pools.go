package multus

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cidr"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/nad"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/internal/whereabouts"
)

// maxRanges is the number of ranges of one object.
const maxRanges = 64

// localRange is a range of host-local.
type localRange struct {
	Subnet  string `json:"subnet"`
	First   string `json:"rangeStart"`
	Last    string `json:"rangeEnd"`
	Gateway string `json:"gateway"`
}

// pools returns, in YAML, an IPPool for each network with host-local, and IPReservations of
// the addresses that its running pods have.
func (s State) pools(networks []Network) (string, error) {
	var (
		out   []string
		pools []*v1alpha1.IPPool
	)
	for i := range networks {
		n := &networks[i]
		if n.IPAM != hostLocal {
			continue
		}
		pool, err := poolOf(n)
		if err != nil {
			out = append(out, fmt.Sprintf("# %s: no IPPool: %s\n", n.Name, printable(err.Error())))
			continue
		}
		all, remark := []any{pool}, ""
		for _, r := range s.reservations(n, pool) {
			all = append(all, r)
		}
		for _, other := range pools {
			if other.Spec.Domain != pool.Spec.Domain && overlap(pool, other) {
				remark += fmt.Sprintf("# It has addresses of %s: if both networks are on one link, use one IPPool for both.\n", other.Name)
			}
		}
		pools = append(pools, pool)
		for _, o := range all {
			text, err := yaml.Marshal(withoutStatus(o))
			if err != nil {
				return "", fmt.Errorf("IPPool of network %s: %w", n.Name, err)
			}
			out, remark = append(out, remark+string(text)), ""
		}
	}
	return strings.Join(out, "---\n"), nil
}

// overlap reports whether two valid pools have an address in common.
func overlap(a, b *v1alpha1.IPPool) bool {
	has := func(p, of *v1alpha1.IPPool) bool {
		parsed, err := block.PoolOf(p)
		return err == nil && slices.ContainsFunc(of.Spec.Ranges, func(text string) bool { return parsed.Covers(firstOf(text)) })
	}
	return has(a, b) || has(b, a)
}

// firstOf returns the first address of a range that poolOf has written.
func firstOf(text string) netip.Addr {
	first, _, _ := strings.Cut(text, "-")
	first, _, _ = strings.Cut(first, "/")
	a, _ := netip.ParseAddr(first)
	return a
}

// withoutStatus returns the fields of an object that a person writes.
func withoutStatus(o any) any {
	raw, _ := json.Marshal(o) // objects of the API have a JSON form
	var fields map[string]any
	_ = json.Unmarshal(raw, &fields)
	delete(fields, "status")
	if m, ok := fields["metadata"].(map[string]any); ok {
		delete(m, "creationTimestamp")
	}
	return fields
}

// poolOf returns an IPPool with the addresses of a network's host-local, open to the
// network's namespace. Its address domain is that of the namespace, so that networks of one
// namespace with the same range give no address twice.
func poolOf(n *Network) (*v1alpha1.IPPool, error) {
	section, err := nad.Section([]byte(n.config))
	if err != nil {
		return nil, err
	}
	var o struct {
		localRange
		Ranges [][]localRange `json:"ranges"`
	}
	if err := json.Unmarshal(section, &o); err != nil {
		return nil, fmt.Errorf("ipam: %w", err)
	}
	sets := o.Ranges
	if o.Subnet != "" {
		sets = append([][]localRange{{o.localRange}}, sets...)
	}
	name := strings.ReplaceAll(n.Name, "/", ".")
	pool := &v1alpha1.IPPool{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "IPPool"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.LabelMigratedFrom: "multus"}},
		Spec: v1alpha1.IPPoolSpec{
			Domain: whereabouts.NamespaceDomain(n.namespace, ""), Placement: v1alpha1.PlacementShared,
			NetworkNamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{labelName: n.namespace}},
		},
	}
	families := map[bool]bool{}
	for _, set := range sets {
		if len(set) == 0 {
			continue
		}
		v4, err := addSet(&pool.Spec, set)
		if err != nil {
			return nil, err
		}
		if families[v4] {
			return nil, errors.New("ipam.ranges: two sets of one family give an interface two addresses: name an IPPool for one of them")
		}
		families[v4] = true
	}
	if len(pool.Spec.Ranges) == 0 {
		return nil, errors.New("ipam.ranges: none: the runtime gives them to the plugin")
	}
	if _, err := block.PoolOf(pool); err != nil {
		return nil, err
	}
	return pool, nil
}

// addSet adds a set of ranges of one family to a pool. v4 is the family of the set.
func addSet(spec *v1alpha1.IPPoolSpec, set []localRange) (v4 bool, err error) {
	for i, r := range set {
		p, err := netip.ParsePrefix(r.Subnet)
		if err != nil {
			return false, fmt.Errorf("ipam.ranges: subnet %q: must be a network, as 10.0.0.0/24", r.Subnet)
		}
		p = p.Masked()
		if i > 0 && p.Addr().Is4() != v4 {
			return false, fmt.Errorf("ipam.ranges: subnet %q: must be of the family of the others in its set", r.Subnet)
		}
		v4 = p.Addr().Is4()
		text := p.String()
		if r.First != "" || r.Last != "" {
			first, last := r.First, r.Last
			if first == "" {
				first = p.Addr().Next().String()
			}
			if last == "" {
				last = lastOf(p).String()
			}
			text = fmt.Sprintf("%s-%s/%d", first, last, p.Bits())
		}
		spec.Ranges = append(spec.Ranges, text)
		if gateway := r.Gateway; i == 0 { // host-local: the first address if none is set
			if gateway == "" {
				gateway = p.Addr().Next().String()
			}
			spec.Gateways = append(spec.Gateways, gateway)
		}
	}
	return v4, nil
}

// lastOf returns the last address of a network that host-local gives out: of IPv4 not the
// broadcast address.
func lastOf(p netip.Prefix) netip.Addr {
	last := cidr.Last(p)
	if last.Is4() {
		return last.Prev()
	}
	return last
}

// reservations withhold the addresses that running pods have on a network from the pool
// that replaces host-local.
func (s State) reservations(n *Network, pool *v1alpha1.IPPool) []*v1alpha1.IPReservation {
	parsed, err := block.PoolOf(pool)
	if err != nil {
		return nil
	}
	var addrs []netip.Addr
	for p := range s.alive() {
		for _, a := range shown(p, n.Name) {
			if parsed.Covers(a) {
				addrs = append(addrs, a)
			}
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	addrs = slices.Compact(addrs)
	var out []*v1alpha1.IPReservation
	for ranges := range slices.Chunk(texts(addrs), maxRanges) {
		out = append(out, &v1alpha1.IPReservation{
			TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "IPReservation"},
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("%s-%d", pool.Name, len(out)+1), Labels: map[string]string{v1alpha1.LabelMigratedFrom: "multus"},
			},
			Spec: v1alpha1.IPReservationSpec{
				Domain: pool.Spec.Domain, Ranges: ranges, Reason: "pods have these addresses from host-local: delete this when they are gone",
			},
		})
	}
	return out
}

// texts formats sorted addresses, those in a row as one range.
func texts(addrs []netip.Addr) []string {
	var out []string
	for i := 0; i < len(addrs); {
		last := i
		for last+1 < len(addrs) && addrs[last].Next() == addrs[last+1] {
			last++
		}
		text := addrs[i].String()
		if last > i {
			text += "-" + addrs[last].String()
		}
		out, i = append(out, text), last+1
	}
	return out
}

// shown returns the addresses that a pod's network-status shows on a network.
func shown(p *corev1.Pod, network string) []netip.Addr {
	var entries []struct {
		Name string   `json:"name"`
		IPs  []string `json:"ips"`
	}
	if json.Unmarshal([]byte(p.Annotations[pod.AnnotationNetworkStatus]), &entries) != nil {
		return nil
	}
	var out []netip.Addr
	for _, e := range entries {
		for _, text := range e.IPs {
			if a, err := netip.ParseAddr(text); err == nil && e.Name == network {
				out = append(out, a)
			}
		}
	}
	return out
}
