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

const (
	// machineKind is the kind of the controller of a pod in which KubeVirt runs a virtual
	// machine; its name is the machine's.
	machineKind = "VirtualMachineInstance"
	// hostNameLabel has the host name of such a machine: machines may share it.
	hostNameLabel = "vm.kubevirt.io/name"
)

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
	// Owners are what those claims are for, and end with.
	Owners map[v1alpha1.Sticky]metav1.OwnerReference
	// Former are names under which those claims may have been made by an earlier version.
	Former map[v1alpha1.Sticky]string
}

// WishesOf a pod. The error names the annotation, its value and what would be
// right.
func WishesOf(p *corev1.Pod) (Wishes, error) {
	addresses, err := Addresses(p)
	if err != nil {
		return Wishes{}, err
	}
	claim, _, err := annotation(p, v1alpha1.AnnotationClaim)
	if err != nil {
		return Wishes{}, err
	}
	w := Wishes{Addresses: addresses, Claim: claim, Sticky: map[v1alpha1.Sticky]string{}}
	w.stick(p)
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

// stick names the claims of sticky pools as a person would name them: after the ordinal
// of the StatefulSet, and after the virtual machine. Both follow from the controller that
// Kubernetes or KubeVirt has set. Who may create pods can write that too, but only in her
// own namespace, and claims are of a namespace.
func (w *Wishes) stick(p *corev1.Pod) {
	owner := metav1.GetControllerOf(p)
	if owner == nil {
		return
	}
	name, kind := "", v1alpha1.StickyOff
	switch {
	case owner.Kind == "StatefulSet" && strings.HasPrefix(owner.APIVersion, "apps/"):
		name, kind = p.Name, v1alpha1.StickyStatefulSet
	case owner.Kind == machineKind && strings.HasPrefix(owner.APIVersion, "kubevirt.io/"):
		name, kind = owner.Name, v1alpha1.StickyVirtualMachine
		if former := p.Labels[hostNameLabel]; former != name && claimName(former) {
			w.Former = map[v1alpha1.Sticky]string{kind: former}
		}
	}
	if !claimName(name) {
		return
	}
	w.Sticky[kind] = name
	w.Owners = map[v1alpha1.Sticky]metav1.OwnerReference{
		kind: {APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID},
	}
}

// Launches reports whether a pod is, by its name, one in which KubeVirt runs a certain
// machine: "virt-launcher-", the machine's name, and five characters that the API server
// chose. Of a machine whose name is so long that the API server cut it, it is not said.
func Launches(podName, machine string) bool {
	const chosen, longest = 5, 58
	front := "virt-launcher-" + machine + "-"
	return len(front) <= longest && len(podName) == len(front)+chosen && strings.HasPrefix(podName, front)
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
