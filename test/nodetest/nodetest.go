package nodetest

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev/host"
)

// Asking returns a network configuration with a runtimeConfig.
func Asking(runtimeConfig string) []byte {
	return []byte(`{"cniVersion":"1.1.0","name":"fairlead","type":"fairlead","runtimeConfig":` + runtimeConfig + `}`)
}

// Attachment returns the PodAttachment of a pod in the namespace ns on node n1, with
// interfaces of these names, or eth0 without names. The first is the default interface.
func Attachment(name, uid string, ifNames ...string) *v1alpha1.PodAttachment {
	if len(ifNames) == 0 {
		ifNames = []string{"eth0"}
	}
	pa := &v1alpha1.PodAttachment{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name + "-" + uid, UID: types.UID("pa-" + uid), Generation: 1,
			Finalizers: []string{v1alpha1.ReleaseFinalizer},
		},
		Spec: v1alpha1.PodAttachmentSpec{PodName: name, PodUID: types.UID(uid), NodeName: "n1"},
	}
	for n, ifName := range ifNames {
		i := v1alpha1.Interface{
			Name: ifName, Network: v1alpha1.DefaultNetwork, Driver: "native", Default: n == 0, MAC: "0a:58:0a:f4:00:05",
			Addresses: []string{fmt.Sprintf("10.244.1.%d/32", 5+n)}, Gateways: []string{"169.254.1.1"},
			Binding: v1alpha1.Binding{Routed: &v1alpha1.RoutedBinding{}},
		}
		if n > 0 {
			i.Gateways = nil
		}
		pa.Spec.Interfaces = append(pa.Spec.Interfaces, i)
	}
	return pa
}

// WantCode checks that an error has a CNI code, or is nil if code is 0, and that its
// message has the words.
func WantCode(t *testing.T, err error, code int, words ...string) {
	t.Helper()
	got := 0
	var e *cniproto.Error
	if errors.As(err, &e) {
		got = e.Code
	} else if err != nil {
		t.Fatalf("the error has no CNI code: %v", err)
	}
	if got != code {
		t.Fatalf("code %d (%v), want %d", got, err, code)
	}
	for _, word := range words {
		if e == nil || !strings.Contains(e.Msg, word) {
			t.Errorf("the message lacks %q: %v", word, err)
		}
	}
}

// NodeNetwork returns the NodeNetwork of a node with these blocks and addresses.
func NodeNetwork(name string, blocks, addresses []string) *v1alpha1.NodeNetwork {
	return &v1alpha1.NodeNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Spec:       v1alpha1.NodeNetworkSpec{Blocks: blocks},
		Status:     v1alpha1.NodeNetworkStatus{Addresses: addresses},
	}
}

// SameAddresses compares addresses and prefixes with ==, for package cmp.
var SameAddresses = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

// Tunnelled returns the NodeNetwork of a node that encapsulates.
func Tunnelled(name string, blocks, addresses []string) *v1alpha1.NodeNetwork {
	nn := NodeNetwork(name, blocks, addresses)
	nn.Status.Tunnel = &v1alpha1.Tunnel{MAC: host.TunnelMAC(name).String()}
	return nn
}

// ConfirmedNetwork returns the NodeNetwork of a node with a tunnel. underlay has the addresses and
// networks that the controller has confirmed; nil means that it confirms none at all.
func ConfirmedNetwork(name, block string, addresses, underlay []string) *v1alpha1.NodeNetwork {
	nn := Tunnelled(name, []string{block}, addresses)
	nn.Spec.Underlay = underlay
	return nn
}
