package pod

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// virtualMachineLabel has the name of the virtual machine that a pod of
// KubeVirt runs.
const virtualMachineLabel = "vm.kubevirt.io/name"

// Wishes are what a pod asks of its address on the default network.
type Wishes struct {
	// Addresses that it wants, at most one per family.
	Addresses []netip.Addr
	// Claim names the IPClaim, in its namespace, whose addresses it wants.
	Claim string
	// ClaimText is what the pod calls that claim, if it is not its name.
	ClaimText string
	// Sticky names the claim that a pool which is sticky for pods of this
	// kind gives it without being asked.
	Sticky map[v1alpha1.Sticky]string
}

// WishesOf a pod. The error names the annotation, its value and what would be
// right.
func WishesOf(p *corev1.Pod) (Wishes, error) {
	addresses, err := parseAddresses(p.Annotations[v1alpha1.AnnotationAddresses])
	if err != nil {
		return Wishes{}, fmt.Errorf("annotation %s: %w", v1alpha1.AnnotationAddresses, err)
	}
	w := Wishes{Addresses: addresses, Claim: p.Annotations[v1alpha1.AnnotationClaim], Sticky: stickyClaims(p)}
	switch {
	case w.Claim == "" || claimName(w.Claim):
	case claimText(w.Claim):
		w.Claim, w.ClaimText = ClaimFor(w.Claim), w.Claim
	default:
		return Wishes{}, fmt.Errorf("annotation %s: %q can be no claim: write the name of an IPClaim, as in %q, or a text of 1 to %d printable characters without a blank at its ends",
			v1alpha1.AnnotationClaim, w.Claim, "web-0", maxClaimText)
	}
	return w, nil
}

func parseAddresses(text string) ([]netip.Addr, error) {
	if text == "" {
		return nil, nil
	}
	var out []netip.Addr
	for part := range strings.SplitSeq(text, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(part))
		if err != nil || a.Zone() != "" || a.Is4In6() {
			return nil, fmt.Errorf("%q in %q is not an IP address: write at most one per family, separated by a comma, as in %q", part, text, "10.0.0.7,fd00::7")
		}
		for _, other := range out {
			if other.Is4() == a.Is4() {
				return nil, fmt.Errorf("%q has %s and %s, which are of one family: write at most one IPv4 and one IPv6 address, as in %q", text, other, a, "10.0.0.7,fd00::7")
			}
		}
		out = append(out, a)
	}
	return out, nil
}

// stickyClaims are named as a person would name them: after the ordinal of the
// StatefulSet, and after the virtual machine.
func stickyClaims(p *corev1.Pod) map[v1alpha1.Sticky]string {
	out := map[v1alpha1.Sticky]string{}
	if owner := metav1.GetControllerOf(p); owner != nil && owner.Kind == "StatefulSet" && strings.HasPrefix(owner.APIVersion, "apps/") {
		out[v1alpha1.StickyStatefulSet] = p.Name
	}
	if vm := p.Labels[virtualMachineLabel]; claimName(vm) {
		out[v1alpha1.StickyVirtualMachine] = vm
	}
	return out
}

// ClaimOn names the claim of a further interface by that of whose it is, as in
// "web-0.net1": claims that keep an address on each network are several, because
// a claim has one address of each family. Interfaces that are not named as
// Kubernetes names things have a hash for it.
func ClaimOn(claim, iface string) string {
	if len(validation.IsDNS1123Label(iface)) > 0 {
		sum := sha256.Sum256([]byte(iface))
		iface = "if-" + hex.EncodeToString(sum[:4])
	}
	return claim + "." + iface
}

// maxClaimText is the longest text that a pod may call a claim, in characters.
const maxClaimText = 253

func claimText(s string) bool {
	return utf8.ValidString(s) && utf8.RuneCountInString(s) <= maxClaimText && strings.TrimSpace(s) == s &&
		!strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// ClaimFor is the name of the claim that pods call by a text which is no name:
// "text-" and the first 16 digits of the text's SHA-256.
func ClaimFor(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "text-" + hex.EncodeToString(sum[:8])
}

func claimName(s string) bool { return len(validation.IsDNS1123Subdomain(s)) == 0 }
