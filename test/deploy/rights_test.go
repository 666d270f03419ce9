package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
)

// kind is the object of a right: a resource, with the path of its collection and the name
// of an object in it.
type kind struct{ resource, collection, object string }

const (
	ours = "/apis/fairlead.dev/v1alpha1/"
	core = "/api/v1/"
)

// kinds are all of our kinds, and the kinds of Kubernetes that an attacker on a node
// would want.
var kinds = []kind{
	{"podattachments", ours + "namespaces/default/podattachments", "mine"},
	{"podattachments/status", ours + "namespaces/default/podattachments", "mine/status"},
	{"nodenetworks", ours + "nodenetworks", "node-a"},
	{"nodenetworks/status", ours + "nodenetworks", "node-a/status"},
	{"clouds", ours + "clouds", "none"},
	{"clouds/status", ours + "clouds", "none/status"},
	{"ippools", ours + "ippools", "default"},
	{"ippools/status", ours + "ippools", "default/status"},
	{"ipblocks", ours + "ipblocks", "none"},
	{"namespacenetworks", ours + "namespacenetworks", "none"},
	{"namespacenetworks/status", ours + "namespacenetworks", "none/status"},
	{"portpools", ours + "portpools", "none"},
	{"portpools/status", ours + "portpools", "none/status"},
	{"ipreservations", ours + "ipreservations", "none"},
	{"ipreservations/status", ours + "ipreservations", "none/status"},
	{"ipclaims", ours + "namespaces/default/ipclaims", "none"},
	{"ipclaims/status", ours + "namespaces/default/ipclaims", "none/status"},
	{"virtualmachines", "/apis/kubevirt.io/v1/namespaces/default/virtualmachines", "none"},
	{"virtualmachineinstances", "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances", "none"},
	{"statefulsets", "/apis/apps/v1/namespaces/default/statefulsets", "none"},
	{"ipamclaims", "/apis/k8s.cni.cncf.io/v1alpha1/namespaces/default/ipamclaims", "none"},
	{"ipamclaims/status", "/apis/k8s.cni.cncf.io/v1alpha1/namespaces/default/ipamclaims", "none/status"},
	{"pods", core + "namespaces/default/pods", "none"},
	{"pods/status", core + "namespaces/default/pods", "none/status"},
	{"pods/finalizers", core + "namespaces/default/pods", "none/finalizers"},
	{"nodes", core + "nodes", "node-a"},
	{"nodes/status", core + "nodes", "node-a/status"},
	{"namespaces", core + "namespaces", "default"},
	{"secrets", core + "namespaces/default/secrets", "none"},
	{"secrets of ours", core + "namespaces/fairlead-system/secrets", "none"},
	{"configmaps", core + "namespaces/fairlead-system/configmaps", "none"},
	{"serviceaccounts", core + "namespaces/fairlead-system/serviceaccounts", "fairlead-node"},
	{"services", core + "namespaces/default/services", "kubernetes"},
	{"events, core", core + "namespaces/default/events", "none"},
	{"events", "/apis/events.k8s.io/v1/namespaces/default/events", "none"},
	{"leases", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", "fairlead-controller"},
	{"leases of ours", "/apis/coordination.k8s.io/v1/namespaces/fairlead-system/leases", "fairlead-controller"},
	{"other leases of ours", "/apis/coordination.k8s.io/v1/namespaces/fairlead-system/leases", "other"},
	{"daemonsets", "/apis/apps/v1/namespaces/fairlead-system/daemonsets", "fairlead-node"},
	{"tokenreviews", "/apis/authentication.k8s.io/v1/tokenreviews", ""},
	{"token", core + "namespaces/fairlead-system/serviceaccounts/fairlead-controller/token", ""},
	{"clusterroles", "/apis/rbac.authorization.k8s.io/v1/clusterroles", "fairlead-node"},
	{"clusterrolebindings", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", "fairlead-node"},
	{"policies", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", "fairlead-node"},
	{"policybindings", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings", "fairlead-node"},
	{"customresourcedefinitions", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "ippools.fairlead.dev"},
	{"networkattachmentdefinitions", "/apis/k8s.cni.cncf.io/v1/namespaces/default/network-attachment-definitions", "none"},
}

var verbs = []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}

// account has a program's credentials, used without a client library.
type account struct {
	server string
	http   *http.Client
}

func newAccount(t *testing.T, kubeconfig string) *account {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return accountOf(t, cfg)
}

func accountOf(t *testing.T, cfg *rest.Config) *account {
	t.Helper()
	web, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &account{server: cfg.Host, http: web}
}

// try tries a verb on a kind, without an effect, and reports whether it was not
// forbidden.
func (a *account) try(t *testing.T, k kind, verb string) bool {
	t.Helper()
	one := k.collection + "/" + k.object
	var code int
	switch verb {
	case "get":
		code, _ = a.call(t.Context(), t, http.MethodGet, one, "")
	case "list":
		code, _ = a.call(t.Context(), t, http.MethodGet, k.collection, "")
	case "watch":
		code, _ = a.call(t.Context(), t, http.MethodGet, k.collection+"?watch=true&timeoutSeconds=1", "")
	case "create":
		code, _ = a.call(t.Context(), t, http.MethodPost, k.collection+"?dryRun=All", "{}")
	case "update":
		code, _ = a.call(t.Context(), t, http.MethodPut, one+"?dryRun=All", "{}")
	case "patch":
		code, _ = a.call(t.Context(), t, http.MethodPatch, one+"?dryRun=All", "{}")
	case "delete":
		code, _ = a.call(t.Context(), t, http.MethodDelete, one+"?dryRun=All", "")
	case "deletecollection":
		code, _ = a.call(t.Context(), t, http.MethodDelete, k.collection+"?dryRun=All", "")
	}
	if code == http.StatusUnauthorized {
		t.Fatalf("%s %s: the token is not accepted", verb, k.resource)
	}
	return code != http.StatusForbidden
}

// call returns the code of an answer and, if it is an error, its message.
func (a *account) call(ctx context.Context, t *testing.T, method, path, body string) (code int, message string) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, a.server+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	reply, err := a.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	if r.URL.Query().Has("watch") && reply.StatusCode == http.StatusOK {
		return reply.StatusCode, ""
	}
	raw, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	var status metav1.Status
	_ = json.Unmarshal(raw, &status) // an object, if it is no error
	return reply.StatusCode, status.Message
}

// testRights tries every verb on every kind; want has the allowed verbs by the resource.
func testRights(t *testing.T, a *account, want map[string]string) {
	for resource := range want {
		if !slices.ContainsFunc(kinds, func(k kind) bool { return k.resource == resource }) {
			t.Errorf("%s is expected and not tried", resource)
		}
	}
	for _, k := range kinds {
		for _, verb := range verbs {
			// A kind without named objects has one verb, and a subresource has no
			// collection.
			if k.object == "" && verb != "create" || strings.Contains(k.resource, "/") && !slices.Contains([]string{"get", "update", "patch"}, verb) {
				continue
			}
			allowed := slices.Contains(strings.Fields(want[k.resource]), verb)
			if got := a.try(t, k, verb); got != allowed {
				t.Errorf("%s %s: allowed is %v, must be %v", verb, k.resource, got, allowed)
			}
		}
	}
}

func testControllerRights(t *testing.T, c *cluster.Cluster) {
	a := newAccount(t, c.Account(cluster.ControllerAccount, ""))
	testRights(t, a, map[string]string{
		"pods":                         "get list watch",
		"pods/status":                  "patch",
		"nodes":                        "get list watch",
		"namespaces":                   "get list watch",
		"podattachments":               "get list watch create patch delete",
		"podattachments/status":        "patch",
		"nodenetworks":                 "get list watch create patch",
		"namespacenetworks":            "get list watch create patch",
		"namespacenetworks/status":     "patch",
		"clouds":                       "get create",
		"clouds/status":                "patch",
		"ippools":                      "get list watch create delete",
		"networkattachmentdefinitions": "get list watch",
		"ippools/status":               "patch",
		"ipblocks":                     "get list watch create update delete",
		"portpools":                    "get list watch create update delete",
		"portpools/status":             "patch",
		"ipreservations":               "get list watch",
		"ipreservations/status":        "patch",
		"ipclaims":                     "get list watch create delete",
		"ipclaims/status":              "patch",
		"virtualmachines":              "get",
		"virtualmachineinstances":      "get",
		"statefulsets":                 "get",
		"ipamclaims":                   "get list watch",
		"ipamclaims/status":            "patch",
		"events":                       "create patch",
		"leases of ours":               "create get update",
		"other leases of ours":         "create", // RBAC cannot restrict the name of a created object
	})
}

// testNodeRights tries the rights of a daemon's token: RBAC decides the kinds and verbs
// of all nodes, the policy decides the objects.
func testNodeRights(t *testing.T, c *cluster.Cluster) {
	makeObjects(t, c)
	a := newAccount(t, c.Account(cluster.NodeAccount, "node-a"))
	// The API server takes a moment to learn of a new policy.
	c.Eventually(t, "the policy to be in force", func(ctx context.Context) error {
		if code, message := a.call(ctx, t, http.MethodPatch, ours+"nodenetworks/node-b/status?dryRun=All", "{}"); code != http.StatusForbidden {
			return fmt.Errorf("the status of another node can be changed: %d %s", code, message)
		}
		return nil
	})
	testRights(t, a, map[string]string{
		"podattachments":        "list watch",
		"podattachments/status": "patch",
		"nodenetworks":          "list watch",
		"nodenetworks/status":   "patch",
		"pods":                  "get",
		"events":                "create",
	})
	t.Run("whose objects", func(t *testing.T) { testWhose(t, c, a) })
	t.Run("what of them", func(t *testing.T) { testOtherFields(t, c, a) })
	t.Run("its events", func(t *testing.T) { testEvents(t, c, a) })
}

// testEvents writes events as a daemon does, and events under another name.
func testEvents(t *testing.T, c *cluster.Cluster, a *account) {
	const events, coreEvents = "/apis/events.k8s.io/v1/namespaces/default/events?dryRun=All", core + "namespaces/default/events?dryRun=All"
	event := func(change ...string) string {
		o := map[string]any{
			"metadata": map[string]any{"name": "mine.18a2b3c4d5e6f708"}, "eventTime": "2026-01-02T03:04:05.000000Z",
			"reportingController": "fairlead.dev/node", "reportingInstance": "node-a", "action": "PlugPod", "reason": "InterfaceNotActive",
			"type": "Warning", "note": "n", "regarding": map[string]any{"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "mine", "uid": "1"},
		}
		for _, text := range change {
			if err := json.Unmarshal([]byte(text), &o); err != nil {
				t.Fatal(err)
			}
		}
		raw, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	c.Eventually(t, "the policy of events to be in force", func(ctx context.Context) error {
		if code, message := a.call(ctx, t, http.MethodPost, events, event(`{"reportingInstance": "node-b"}`)); code != http.StatusForbidden {
			return fmt.Errorf("an event of another node can be written: %d %s", code, message)
		}
		return nil
	})
	const nodeAlone, podsAlone = "may write events as reportingController fairlead.dev/node and reportingInstance node-a alone", "may write events about pods alone"
	controller, unbound := newAccount(t, c.Account(cluster.ControllerAccount, "")), newAccount(t, c.Account(cluster.NodeAccount, ""))
	for _, tc := range []struct {
		name, path, body string
		who              *account
		code             int
		reason           string
	}{
		{"its own", events, event(), a, http.StatusCreated, ""},
		{"in the name of another node", events, event(`{"reportingInstance": "node-b"}`), a, http.StatusForbidden, nodeAlone},
		{"in the kubelet's name", events, event(`{"reportingController": "kubelet"}`), a, http.StatusForbidden, nodeAlone},
		{"in the old fields", events, event(`{"deprecatedSource": {"component": "kubelet", "host": "node-b"}}`), a, http.StatusUnprocessableEntity, "source: Invalid value"},
		{"about a node", events, event(`{"regarding": {"apiVersion": "v1", "kind": "Node", "name": "node-a", "namespace": "default"}}`), a, http.StatusForbidden, podsAlone},
		{"about something of a similar name", events, event(`{"regarding": {"apiVersion": "example.com/v1", "kind": "Pod", "name": "mine", "namespace": "default"}}`), a, http.StatusForbidden, podsAlone},
		{"with a word about another", events, event(`{"related": {"apiVersion": "v1", "kind": "Node", "name": "node-b"}}`), a, http.StatusForbidden, podsAlone},
		{"as a core event", coreEvents, `{}`, a, http.StatusForbidden, "cannot create resource"},
		{"by a token without a node", events, event(), unbound, http.StatusForbidden, "must be bound to a pod on a node"},
		{"of the controller, as ever", events, event(`{"reportingController": "fairlead-controller", "reportingInstance": "x"}`), controller, http.StatusCreated, ""},
	} {
		code, message := tc.who.call(t.Context(), t, http.MethodPost, tc.path, tc.body)
		if code != tc.code || !strings.Contains(message, tc.reason) {
			t.Errorf("%s: code %d, %q; must be %d with %q", tc.name, code, message, tc.code, tc.reason)
		}
	}
}

// makeObjects creates a PodAttachment and a NodeNetwork for node-a and for node-b.
func makeObjects(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	controller := asController(t, c)
	for name, node := range map[string]string{"mine": "node-a", "theirs": "node-b"} {
		for _, o := range []client.Object{
			&v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: node}},
			&v1alpha1.PodAttachment{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
				Spec: v1alpha1.PodAttachmentSpec{
					PodName: name, PodUID: "4ad91b5c-d4a4-4cf0-8bd3-9f0b2a3b6b1c", NodeName: node,
					Interfaces: []v1alpha1.Interface{{
						Name: "eth0", Network: v1alpha1.DefaultNetwork, Driver: "native", Default: true, Addresses: []string{"10.244.0.1/32"},
						Binding: v1alpha1.Binding{Routed: &v1alpha1.RoutedBinding{}},
					}},
				},
			},
		} {
			if err := controller.Create(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := controller.Delete(context.WithoutCancel(t.Context()), o); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func testWhose(t *testing.T, c *cluster.Cluster, a *account) {
	const attachment, network = ours + "namespaces/default/podattachments/", ours + "nodenetworks/"
	unbound := newAccount(t, c.Account(cluster.NodeAccount, "")) // as `kubectl create token` makes
	own := newAccount(t, c.Account(cluster.NodeAccount, "node-b"))
	for _, tc := range []struct {
		name   string
		who    *account
		path   string
		body   string
		code   int
		reason string
	}{
		{"its own PodAttachment", a, attachment + "mine/status", `{"status":{"sandbox":{"state":"Attached"}}}`, http.StatusOK, ""},
		{"its own NodeNetwork", a, network + "node-a/status", `{"status":{"mtu":1500}}`, http.StatusOK, ""},
		{"another's PodAttachment", a, attachment + "theirs/status", `{"status":{"sandbox":{"state":"Detached"}}}`, http.StatusForbidden, "this one is of node node-b"},
		{"another's NodeNetwork", a, network + "node-b/status", `{"status":{"bootID":"lie"}}`, http.StatusForbidden, "this one is of node node-b"},
		{"that of node-b by node-b", own, attachment + "theirs/status", `{"status":{"sandbox":{"state":"Attached"}}}`, http.StatusOK, ""},
		{"that of node-a by node-b", own, attachment + "mine/status", `{"status":{"sandbox":{"state":"Detached"}}}`, http.StatusForbidden, "this one is of node node-a"},
		{"by a token without a node", unbound, attachment + "mine/status", `{"status":{"sandbox":{"state":"Detached"}}}`, http.StatusForbidden, "must be bound to a pod on a node"},
		{"the same of a NodeNetwork", unbound, network + "node-a/status", `{"status":{"bootID":"lie"}}`, http.StatusForbidden, "must be bound to a pod on a node"},
		// RBAC refuses these, so the policy need not.
		{"the spec", a, attachment + "mine", `{"spec":{"nodeName":"node-b"}}`, http.StatusForbidden, "cannot patch resource"},
		{"a finalizer", a, attachment + "mine", `{"metadata":{"finalizers":null}}`, http.StatusForbidden, "cannot patch resource"},
		{"a label", a, attachment + "mine", `{"metadata":{"labels":{"a":"b"}}}`, http.StatusForbidden, "cannot patch resource"},
		{"an owner", a, attachment + "mine", `{"metadata":{"ownerReferences":null}}`, http.StatusForbidden, "cannot patch resource"},
		{"the blocks of its NodeNetwork", a, network + "node-a", `{"spec":{"blocks":["10.0.0.0/26"]}}`, http.StatusForbidden, "cannot patch resource"},
	} {
		code, message := tc.who.call(t.Context(), t, http.MethodPatch, tc.path, tc.body)
		if code != tc.code || !strings.Contains(message, tc.reason) {
			t.Errorf("%s: code %d, %q; must be %d with %q", tc.name, code, message, tc.code, tc.reason)
		}
	}
}

// testOtherNamespace puts the accounts into another namespace under other names, by an
// overlay, and checks that a node is limited to its own objects there too: an expression
// that named the account let such a node write everything.
func testOtherNamespace(t *testing.T, c *cluster.Cluster) {
	const namespace, account = "other", cluster.NodeAccount + "-too"
	dir := t.TempDir()
	rights, err := filepath.Rel(dir, path(t, "rights"))
	if err != nil {
		t.Fatal(err)
	}
	overlay := fmt.Sprintf("namespace: %s\nnameSuffix: -too\nresources: [%s]\n", namespace, rights)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(overlay), 0o600); err != nil {
		t.Fatal(err)
	}
	// The policy of the installation limits every account; here only the overlay's policy
	// must be in force.
	c.Kubectl("delete", "validatingadmissionpolicy,validatingadmissionpolicybinding", cluster.NodeAccount)
	c.Kubectl("apply", "--server-side", "-k", dir)
	defer c.Kubectl("delete", "-k", dir)
	makeObjects(t, c)

	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "node"},
		Spec: corev1.PodSpec{
			NodeName: "node-a", ServiceAccountName: account, TerminationGracePeriodSeconds: new(int64(0)), HostNetwork: true,
			Containers: []corev1.Container{{Name: "main", Image: "none"}},
		},
	}
	if err := c.Client.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	web := rest.AnonymousClientConfig(c.REST)
	web.BearerToken = c.Kubectl("create", "token", account, "--namespace", namespace,
		"--bound-object-kind", "Pod", "--bound-object-name", pod.Name, "--bound-object-uid", string(pod.UID))
	a := accountOf(t, web)
	for path, want := range map[string]string{
		"nodenetworks/node-a/status":                      "",
		"nodenetworks/node-b/status":                      "this one is of node node-b",
		"namespaces/default/podattachments/mine/status":   "",
		"namespaces/default/podattachments/theirs/status": "this one is of node node-b",
	} {
		// The API server takes a moment until new rights and a new policy are in force.
		c.Eventually(t, "the rights to be in force", func(ctx context.Context) error {
			code, message := a.call(ctx, t, http.MethodPatch, ours+path, "{}")
			if want == "" && code != http.StatusOK || want != "" && (code != http.StatusForbidden || !strings.Contains(message, want)) {
				return fmt.Errorf("%s: %d %s; the reason must be %q", path, code, message, want)
			}
			return nil
		})
	}
}

// testOtherFields tries to change other fields in a change of the status: the API server drops
// them.
func testOtherFields(t *testing.T, c *cluster.Cluster, a *account) {
	key := client.ObjectKey{Namespace: "default", Name: "mine"}
	before, after := &v1alpha1.PodAttachment{}, &v1alpha1.PodAttachment{}
	if err := c.Client.Get(t.Context(), key, before); err != nil {
		t.Fatal(err)
	}
	code, message := a.call(t.Context(), t, http.MethodPatch, ours+"namespaces/default/podattachments/mine/status", `{
		"metadata": {"finalizers": ["example.com/f"], "labels": {"a": "b"}, "annotations": {"a": "b"},
			"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "1"}]},
		"spec": {"nodeName": "node-b"},
		"status": {"sandbox": {"state": "Attached", "id": "s1"}}}`)
	if code != http.StatusOK && code != http.StatusForbidden {
		t.Errorf("code %d, %s", code, message)
	}
	if err := c.Client.Get(t.Context(), key, after); err != nil {
		t.Fatal(err)
	}
	before.ResourceVersion, before.ManagedFields, before.Status = after.ResourceVersion, after.ManagedFields, after.Status
	want, err := json.Marshal(before)
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(after)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("the object is\n%s\nand was\n%s", got, want)
	}
}
