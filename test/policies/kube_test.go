package policies

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"fairlead.dev/fairlead/test/nettest"
)

const namespace = "shop"

// TestKubeNetworkPolicies runs kube-network-policies, with its controller and its queue in
// the kernel, on two nodes: it finds the pods of the default network by their addresses, and
// stops exactly what the policies forbid, on one node and between two.
func TestKubeNetworkPolicies(t *testing.T) {
	program, err := filepath.Abs(filepath.Join("..", "..", "bin", "policies"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		nettest.Missing(t, "needs kube-network-policies: make bin/policies")
	}
	nodes := newNodes(t, 2)
	needQueue(t, nodes[0])
	for _, n := range nodes {
		n.callNetfilter(t, "0") // as Fairlead leaves it
	}
	client, stranger, locked := nodes[0].pod(t, "client", "client", 5), nodes[0].pod(t, "stranger", "stranger", 6), nodes[0].pod(t, "locked", "locked", 7)
	near, far := nodes[0].pod(t, "near", "server", 8), nodes[1].pod(t, "far", "server", 5)
	cases := []struct {
		from, to *pod
		allowed  bool
	}{
		{client, near, true},
		{client, far, true},
		{stranger, near, false},
		{stranger, far, false}, // the ingress of servers
		{locked, client, false},
		{locked, far, false}, // the egress of locked pods
		{stranger, locked, true},
		{far, client, true},
	}
	for _, tc := range cases {
		for _, a := range tc.to.addresses {
			nettest.Reaches(t, tc.from.ns, tc.to.ns, a.Addr()) // without policies
		}
	}
	objects := write(t, client, stranger, locked, near, far)
	for _, n := range nodes {
		n.enforce(t, program, objects)
	}
	for _, tc := range cases {
		for _, a := range tc.to.addresses {
			t.Run(fmt.Sprintf("%s to %s at %s", tc.from.name, tc.to.name, a.Addr()), func(t *testing.T) {
				if tc.allowed {
					nettest.Reaches(t, tc.from.ns, tc.to.ns, a.Addr())
				} else if err := nettest.Talk(t, tc.from.ns, tc.to.ns, a.Addr(), time.Second); err == nil {
					t.Error("it is reached, and a policy forbids it")
				}
			})
		}
	}
}

// needQueue skips the test on a kernel without queues of nf_tables.
func needQueue(t *testing.T, n *node) {
	t.Helper()
	err := n.Namespace().Do(func() error {
		cmd := exec.CommandContext(t.Context(), "nft", "-f", "-")
		cmd.Stdin = strings.NewReader("table inet probe { chain c { queue num 7; }; }\ndelete table inet probe\n")
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	if err != nil {
		nettest.Missing(t, "needs nft_queue, with which kube-network-policies gets packets: %v", err)
	}
}

// enforce runs kube-network-policies on the node until the end of the test.
func (n *node) enforce(t *testing.T, program, objects string) {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.Command(program, "--node", n.name, "--objects", objects)
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	nettest.In(t, n.Namespace(), cmd.Start)
	t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("kube-network-policies on %s: %v: %s", n.name, err, &stderr)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if !strings.HasPrefix(line, "ready ") {
		t.Fatalf("kube-network-policies on %s says %q, %v", n.name, line, err)
	}
	t.Logf("kube-network-policies on %s is %s", n.name, strings.TrimSpace(line))
}

// write writes pods and policies as the API server has them, one on each line of a file.
func write(t *testing.T, pods ...*pod) string {
	t.Helper()
	role := func(name string) metav1.LabelSelector {
		return metav1.LabelSelector{MatchLabels: map[string]string{"role": name}}
	}
	clients := role("client")
	objects := []runtime.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "servers"}, Spec: networkingv1.NetworkPolicySpec{
			PodSelector: role("server"), PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &clients}}}},
		}},
		&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "locked"}, Spec: networkingv1.NetworkPolicySpec{
			PodSelector: role("locked"), PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
		}},
	}
	for _, p := range pods {
		o := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: p.name, Labels: map[string]string{"role": p.role}},
			Spec:       corev1.PodSpec{NodeName: p.on.name}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
		}
		for _, a := range p.addresses {
			o.Status.PodIPs = append(o.Status.PodIPs, corev1.PodIP{IP: a.Addr().String()})
		}
		o.Status.PodIP = o.Status.PodIPs[0].IP
		objects = append(objects, o)
	}
	var text []byte
	for _, o := range objects {
		gvk, err := apiutil.GVKForObject(o, scheme.Scheme)
		if err != nil {
			t.Fatal(err)
		}
		o.GetObjectKind().SetGroupVersionKind(gvk)
		line, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		text = append(append(text, line...), '\n')
	}
	file := filepath.Join(t.TempDir(), "objects")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
