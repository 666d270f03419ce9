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

// Wishes are the requests of a pod about its addresses on the default network.
type Wishes struct {
	// Addresses that the pod requests, at most one per family.
	Addresses []netip.Addr
	// Claim names the IPClaim, in the pod's namespace, whose addresses it requests.
	Claim string
	// ClaimText is the pod's text for that claim, if it is not the claim's name.
	ClaimText string
	// Sticky names, by kind of sticky pool, the claim that such a pool gives the pod
	// without a request.
	Sticky map[v1alpha1.Sticky]string
	// Owners are the owners of those claims. A claim ends with its owner.
	Owners map[v1alpha1.Sticky]metav1.OwnerReference
	// Reference names the IPAMClaim of the default interface; empty for none.
	Reference string
	// Launcher is set if the pod is a launcher of a virtual machine.
	Launcher Launcher
}

// WishesOf returns the wishes of a pod. An error names the annotation, its value and the
// accepted form.
func WishesOf(p *corev1.Pod) (Wishes, error) {
	addresses, err := Addresses(p)
	if err != nil {
		return Wishes{}, err
	}
	claim, _, err := annotation(p, v1alpha1.AnnotationClaim)
	if err != nil {
		return Wishes{}, err
	}
	reference, err := primaryClaim(p, claim)
	if err != nil {
		return Wishes{}, err
	}
	w := Wishes{Addresses: addresses, Claim: claim, Reference: reference, Sticky: map[v1alpha1.Sticky]string{}}
	w.Launcher, _ = LauncherOf(p)
	w.addSticky(p)
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

// primaryClaim returns the IPAMClaim that a pod names for its default interface; empty if it
// names none. claim is the pod's IPClaim.
func primaryClaim(p *corev1.Pod, claim string) (string, error) {
	name, _, err := annotation(p, AnnotationPrimaryClaim)
	switch {
	case err != nil || name == "":
		return "", err
	case !claimName(name):
		return "", fmt.Errorf("annotation %s: %q: must be the name of an IPAMClaim, as %q", AnnotationPrimaryClaim, name, "vm1.default")
	case claim != "":
		return "", fmt.Errorf("annotation %s: %q: must not stand beside %s: the addresses are those of one claim: leave one of them out", AnnotationPrimaryClaim, name, v1alpha1.AnnotationClaim)
	}
	return name, nil
}

// Addresses returns the addresses that a pod asks for on the default network, at most one
// per family. Its error names the annotation, the value and what would be right.
func Addresses(p *corev1.Pod) ([]netip.Addr, error) {
	text, _, err := annotation(p, v1alpha1.AnnotationAddresses)
	if err != nil {
		return nil, err
	}
	addresses, err := parseAddresses(text)
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", v1alpha1.AnnotationAddresses, err)
	}
	return addresses, nil
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

// addSticky sets the claims of sticky pools. They have the name of the pod of a
// StatefulSet, or of the virtual machine. The kind follows from the owner that Kubernetes
// or KubeVirt has set. A user who may create pods can forge the owner, but only in a
// namespace of hers, and claims belong to a namespace.
func (w *Wishes) addSticky(p *corev1.Pod) {
	owner := metav1.GetControllerOf(p)
	if owner == nil {
		return
	}
	name, kind := "", v1alpha1.StickyOff
	switch {
	case owner.Kind == "StatefulSet" && strings.HasPrefix(owner.APIVersion, "apps/"):
		name, kind = p.Name, v1alpha1.StickyStatefulSet
	case isInstance(owner):
		name, kind = owner.Name, v1alpha1.StickyVirtualMachine
	}
	if !claimName(name) {
		return
	}
	w.Sticky[kind] = name
	w.Owners = map[v1alpha1.Sticky]metav1.OwnerReference{
		kind: {APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID},
	}
}

// ClaimOn returns the name of the claim of a further interface: claim, which names the
// pod or the machine, and the interface, as in "web-0.net1". Each network needs a claim
// of its own, because a claim has one address of each family. An interface name that is
// not valid in Kubernetes is replaced by a hash.
func ClaimOn(claim, iface string) string {
	if len(validation.IsDNS1123Label(iface)) > 0 {
		sum := sha256.Sum256([]byte(iface))
		iface = "if-" + hex.EncodeToString(sum[:4])
	}
	return claim + "." + iface
}

// ClaimOfReference returns the name of the IPClaim that keeps the addresses of an IPAMClaim:
// "ipamclaim." and its name, or a hash of a name that is too long for that.
func ClaimOfReference(name string) string {
	const front = "ipamclaim"
	if claim := front + "." + name; claimName(claim) {
		return claim
	}
	sum := sha256.Sum256([]byte(name))
	return front + "-" + hex.EncodeToString(sum[:16])
}

// maxClaimText is the length of the longest text for a claim, in characters.
const maxClaimText = 253

func claimText(s string) bool {
	return utf8.ValidString(s) && utf8.RuneCountInString(s) <= maxClaimText && strings.TrimSpace(s) == s &&
		!strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// ClaimFor returns the name of the claim for a text that is not a name: "text-" and the
// first 16 digits of the text's SHA-256.
func ClaimFor(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "text-" + hex.EncodeToString(sum[:8])
}

func claimName(s string) bool { return len(validation.IsDNS1123Subdomain(s)) == 0 }
