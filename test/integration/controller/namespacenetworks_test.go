package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cloudtest"
	"fairlead.dev/fairlead/test/cluster"
)

// namespaceTest has controllers that give namespaces with the label of the test networks of
// their own, on request.
type namespaceTest struct {
	*neutronTest
	selected string
}

func startNamespaces(t *testing.T, c *cluster.Cluster) *namespaceTest {
	t.Helper()
	w := &namespaceTest{selected: c.Namespace}
	w.neutronTest = startNeutronWith(t, c, fmt.Sprintf("ports: {network: lan}, namespaceNetworks: {namespaceSelector: {matchLabels: {test: %q}}, onRequest: true, subnetPools: [v4, v6], router: gateway}", c.Namespace), "defaultNetwork: {driver: neutron}")
	w.repeat(t, 10*time.Millisecond, func(ctx context.Context) {
		var all v1alpha1.PodAttachmentList // of all namespaces
		if w.c.Client.List(ctx, &all) == nil {
			w.detach(ctx, all.Items)
			for _, r := range all.Items {
				w.plug(r)
			}
		}
	})
	w.cloud.Add(t, "routers", cloudtest.AdminProject, cloudtest.Object{"name": "gateway"})
	w.cloud.Add(t, "subnetpools", cloudtest.AdminProject, cloudtest.Object{"name": "v4", "prefixes": []any{"10.64.0.0/24"}, "default_prefixlen": 29.0, "min_prefixlen": 29.0})
	w.cloud.Add(t, "subnetpools", cloudtest.AdminProject, cloudtest.Object{"name": "v6", "prefixes": []any{"fd64::/56"}, "default_prefixlen": 64.0, "min_prefixlen": 64.0})
	return w
}

// namespace creates a namespace, which asks for a network of its own.
func (w *namespaceTest) namespace(t *testing.T, name string, selected bool) string {
	t.Helper()
	o := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.c.Namespace + "-" + name, Labels: map[string]string{v1alpha1.LabelNetwork: v1alpha1.NetworkOwn, "fairlead.dev/test": "true"}}}
	if selected {
		o.Labels["test"] = w.selected
	}
	w.c.Eventually(t, "namespace "+o.Name, func(ctx context.Context) error {
		o.ResourceVersion, o.UID = "", ""
		return w.c.Client.Create(ctx, o)
	})
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(w.c.Client.Delete(context.WithoutCancel(t.Context()), o)); err != nil {
			t.Error(err)
		}
	})
	return o.Name
}

// pod creates a pod with a given name in a namespace.
func (w *namespaceTest) pod(t *testing.T, namespace, name string) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{
			NodeName: "node-x", Containers: []corev1.Container{{Name: "c", Image: "none"}}, TerminationGracePeriodSeconds: new(int64),
			AutomountServiceAccountToken: new(bool),
		},
	}
	w.c.Eventually(t, "pod "+name, func(ctx context.Context) error {
		err := w.c.Client.Create(ctx, p)
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	return p
}

// address returns the first address of a pod's port, when it is active.
func (w *namespaceTest) address(t *testing.T, p *corev1.Pod) string {
	t.Helper()
	i := w.active(t, p, "eth0").Spec.Interfaces[0]
	if len(i.Addresses) != 2 {
		t.Errorf("pod %s has %v, want an address of each family", p.Name, i.Addresses)
	}
	return i.Addresses[0]
}

// network waits for the NamespaceNetwork of a namespace that is ready.
func (w *namespaceTest) network(t *testing.T, namespace string) v1alpha1.NamespaceNetwork {
	t.Helper()
	var found v1alpha1.NamespaceNetwork
	w.c.Eventually(t, "the network of namespace "+namespace, func(ctx context.Context) error {
		ns, list := &corev1.Namespace{}, &v1alpha1.NamespaceNetworkList{}
		if err := errors.Join(w.c.Client.Get(ctx, client.ObjectKey{Name: namespace}, ns), w.c.Client.List(ctx, list)); err != nil {
			return err
		}
		for _, o := range list.Items {
			if o.Spec.NamespaceUID == string(ns.UID) && meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionNetworkReady) {
				found = o
				return nil
			}
		}
		return fmt.Errorf("the records are %+v", list.Items)
	})
	return found
}

// ended deletes namespaces and waits until the cloud has only the networks of the test.
func (w *namespaceTest) ended(t *testing.T, namespaces ...string) {
	t.Helper()
	for _, n := range namespaces {
		if err := w.c.Client.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n}}); err != nil {
			t.Error(err)
		}
	}
	w.c.Eventually(t, "the networks of the namespaces to be gone", func(ctx context.Context) error {
		list := &v1alpha1.NamespaceNetworkList{}
		if err := w.c.Client.List(ctx, list); err != nil {
			return err
		}
		for _, o := range list.Items {
			if slices.Contains(namespaces, o.Spec.Namespace) {
				return fmt.Errorf("left: %+v", o)
			}
		}
		for _, o := range w.cloud.Objects("networks") {
			for _, n := range namespaces {
				if strings.Contains(fmt.Sprint(o["name"]), "/"+n+"/") {
					return fmt.Errorf("left in the cloud: %v", o)
				}
			}
		}
		return nil
	})
}

// Namespaces have networks of their own through churn, full subnets, a killed leader and the
// reuse of their name, and leave nothing.
func TestNamespaceNetworks(t *testing.T) {
	t.Parallel()
	c := cluster.Exclusive(t)
	w := startNamespaces(t, c)
	blue, red := w.namespace(t, "blue", true), w.namespace(t, "red", true)

	first := w.pod(t, blue, "first")
	if got := w.address(t, first); !strings.HasPrefix(got, "10.64.0.") || !strings.HasSuffix(got, "/29") {
		t.Errorf("the pod has %s, want an address of the pool", got)
	}
	if got := w.address(t, w.pod(t, w.c.Namespace, "shared")); !strings.HasPrefix(got, "10.8.0.") {
		t.Errorf("the pod of a namespace that does not ask has %s, want an address of the network of all", got)
	}
	thief := w.pod(t, w.namespace(t, "green", false), "thief")
	w.refused(t, thief, "NetworkInvalid", "asks for a network of its own, which the namespace may not have")

	// More pods than a subnet has addresses.
	var pods []*corev1.Pod
	for n := range 12 {
		pods = append(pods, w.pod(t, blue, fmt.Sprint("web-", n)))
	}
	for _, p := range pods {
		w.address(t, p)
	}
	if o := w.network(t, blue); len(o.Status.Subnets) < 4 {
		t.Errorf("the network has %s for 13 pods", o.Status.Summary)
	}

	// The leader is killed in the middle of the making of a network.
	leader := processOf(t, leaderOf(t, c))
	var once atomic.Bool
	w.cloud.Inject(func(method, path string) cloudtest.Fault {
		if method != "POST" || path != "/subnets" || !once.CompareAndSwap(false, true) {
			return cloudtest.Fault{}
		}
		if err := syscall.Kill(leader, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		return cloudtest.Fault{LoseReply: true}
	})
	w.address(t, w.pod(t, red, "adopted"))
	w.cloud.Inject(nil)
	if !once.Load() {
		t.Error("the leader was not killed")
	}

	// The namespaces go with their pods, and one comes back.
	former := w.network(t, blue).Status.Network
	w.ended(t, red, blue)
	again := w.namespace(t, "blue", true)
	w.address(t, w.pod(t, again, "first"))
	if now := w.network(t, again).Status.Network; now == former {
		t.Error("the later namespace has the former one's network")
	}
	w.ended(t, again)
	for _, n := range w.cloud.Objects("networks") {
		if strings.HasPrefix(fmt.Sprint(n["name"]), "fairlead/") {
			t.Errorf("left: %v", n)
		}
	}
}

// A quota stops the pods of its namespace, which say so, until there is room again.
func TestQuotaOfNamespaceNetworks(t *testing.T) {
	t.Parallel()
	c := cluster.Exclusive(t)
	w := startNamespaces(t, c)
	w.cloud.SetQuota(cloudtest.AdminProject, "network", 3) // two are the test's
	blue, red := w.namespace(t, "blue", true), w.namespace(t, "red", true)
	w.address(t, w.pod(t, blue, "web"))
	p := w.pod(t, red, "web")
	w.refused(t, p, "NetworkExhausted", "the network of namespace "+red, "Quota exceeded")
	w.address(t, w.pod(t, blue, "next"))
	w.cloud.SetQuota(cloudtest.AdminProject, "network", -1)
	w.address(t, p)
	w.ended(t, blue, red)
	if err := w.c.Client.Get(t.Context(), types.NamespacedName{Namespace: red, Name: "web"}, &corev1.Pod{}); !apierrors.IsNotFound(err) {
		t.Errorf("pod of a deleted namespace: %v", err)
	}
}
