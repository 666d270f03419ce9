package whereabouts

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// LabelFor is a label of the IPPools that serve a configuration of whereabouts.
const LabelFor = "fairlead.dev/pool-for"

// maxName is the longest name of a domain and value of a label.
const maxName = 63

// Domain returns the address domain of a network_name. A name that is not valid for a
// domain is converted. The unnamed network has the domain "default"; a network with the
// name "default" has another.
func Domain(networkName string) string {
	if networkName == "" {
		return v1alpha1.DefaultNetwork
	}
	var b strings.Builder
	for _, c := range strings.ToLower(networkName) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			c = '-'
		}
		b.WriteRune(c)
	}
	name := strings.Trim(b.String(), "-")
	if name == networkName && len(name) <= maxName && name != v1alpha1.DefaultNetwork {
		return name
	}
	return strings.TrimLeft(name[:min(len(name), maxName-9)]+"-"+short(networkName), "-")
}

// NamespaceDomain returns a namespace's own domain for a network_name, or for the unnamed
// network. No name in another namespace has the same domain, and no name leads to a
// Domain that is not open to the namespace.
func NamespaceDomain(namespace, networkName string) string {
	sum := sha256.Sum256([]byte(namespace + "/" + networkName))
	hash := hex.EncodeToString(sum[:8])
	room := maxName - len("nad--") - len(hash)
	return "nad-" + strings.TrimRight(namespace[:min(len(namespace), room)], "-") + "-" + hash
}

// Pools returns the IPPools of a domain for a configuration, one per range, in the order
// of the ranges. Equal ranges, also of two configurations, have the same pool in a
// domain.
func Pools(c Config, domain string) []v1alpha1.IPPool {
	var out []v1alpha1.IPPool
	for _, r := range c.Ranges {
		pool := PoolOf(c, r, domain)
		if !slices.ContainsFunc(out, func(p v1alpha1.IPPool) bool { return p.Name == pool.Name }) {
			out = append(out, pool)
		}
	}
	return out
}

// PoolOf returns the IPPool of a domain for a range of a configuration.
func PoolOf(c Config, r Range, domain string) v1alpha1.IPPool {
	spec := v1alpha1.IPPoolSpec{Domain: domain, Ranges: []string{r.Prefix.String()}}
	first, last := usable(r.Prefix)
	if r.First != first || r.Last != last {
		spec.Ranges[0] = fmt.Sprintf("%s-%s/%d", r.First, r.Last, r.Prefix.Bits())
	}
	for _, h := range r.holes() {
		text := h.first.String()
		if h.first != h.last {
			text += "-" + h.last.String()
		}
		spec.Excludes = append(spec.Excludes, text)
	}
	if c.Gateway.IsValid() && r.Prefix.Contains(c.Gateway) {
		spec.Gateways = []string{c.Gateway.String()}
	}
	return v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{
			Name:   name(spec, r.Prefix),
			Labels: map[string]string{LabelFor: Type},
		},
		Spec: spec,
	}
}

// name returns the name of a pool: wb-<network>, as whereabouts writes it, followed by a
// hash if domain, range, excludes or gateways are not the default.
func name(spec v1alpha1.IPPoolSpec, network netip.Prefix) string {
	text := strings.NewReplacer(":", "-", "/", "-").Replace(network.String())
	plain := spec.Domain == v1alpha1.DefaultNetwork && spec.Ranges[0] == network.String() && len(spec.Excludes)+len(spec.Gateways) == 0
	if plain {
		return "wb-" + text
	}
	of := strings.Join([]string{spec.Domain, spec.Ranges[0], strings.Join(spec.Excludes, ","), strings.Join(spec.Gateways, ",")}, " ")
	if spec.Domain != v1alpha1.DefaultNetwork {
		text = spec.Domain + "-" + text
	}
	return "wb-" + text + "-" + short(of)
}

// short returns a hash of eight characters.
func short(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:4])
}
