package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/cluster"
)

// TestIPAMClaims runs the controller with the claims of KubeVirt's networks. whereabouts#557:
// a pod that references a claim gets its addresses, whichever pod had them before.
func TestIPAMClaims(t *testing.T) {
	t.Parallel()
	c := cluster.Exclusive(t)
	for name, cidr := range map[string]string{"default": "10.1.0.0/24", "kv": "10.9.0.0/29"} {
		create(t, c, &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.IPPoolSpec{
			Domain: name, Ranges: []string{cidr}, Cooldown: &metav1.Duration{Duration: 5 * time.Second}, NetworkNamespaceSelector: &metav1.LabelSelector{},
		}})
	}
	c.Node("node-x")
	c.Network("lan", `{"cniVersion":"1.0.0","name":"lan","type":"bridge","ipam":{"type":"fairlead-ipam","pools":["kv"]}}`)
	supervise(t, c.Account(cluster.ControllerAccount, ""), "multiVIFSources: [npwg]")
	w := &ipamClaimTest{claimTest{&observer{c: c, domain: "kv"}}}
	w.repeat(t, 10*time.Millisecond, func(ctx context.Context) {
		if records, err := w.records(ctx); err == nil {
			w.detach(ctx, records)
		}
	})
	t.Run("a driver that does not exist", func(t *testing.T) {
		network := c.Network("lost", `{"type":"any"}`)
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:"nimbus"}}}`, v1alpha1.AnnotationDriver)
		if err := c.Client.Patch(t.Context(), network, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
			t.Fatal(err)
		}
		p := w.annotated("lost", "node-x", pod.AnnotationNetworks, "lost")
		w.refused(t, p, "NetworkInvalid", "interface net1", `no driver is named "nimbus": must be one of fixed, native`)
		w.delete(t, p)
	})
	t.Run("the kind comes later", func(t *testing.T) {
		p := w.references("early", "early.lan")
		w.refused(t, p, "NetworkInvalid", "the cluster has no IPAMClaims")
		serveIPAMClaims(t, c)
		// The kind is removed with the test, so the other tests are a part of this one.
		o := w.reference(t, "early.lan")
		w.shows(t, o, w.net1(t, p), "early", "SuccessfulAllocation", "ipamclaim.early.lan")
		w.delete(t, p)
		w.served(t)
	})
}

func (w *ipamClaimTest) served(t *testing.T) {
	t.Run("kept", w.kept)
	t.Run("requests", w.requests)
	t.Run("no such claim", func(t *testing.T) {
		p := w.references("lost", "absent")
		w.refused(t, p, "NetworkNotFound", "IPAMClaim", "absent")
		w.shows(t, w.reference(t, "absent"), w.net1(t, p), "lost", "SuccessfulAllocation", "")
	})
	t.Run("another of its name", w.again)
}

type ipamClaimTest struct{ claimTest }

// serveIPAMClaims installs the kind of IPAMClaims as release 0.5 of its CRD has it.
func serveIPAMClaims(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	text := apiextensionsv1.JSONSchemaProps{Type: "string"}
	texts := apiextensionsv1.JSONSchemaProps{Type: "array", MaxItems: new(int64(2)), Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &text}}
	condition := apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true), Required: []string{"lastTransitionTime", "message", "reason", "status", "type"}}
	object := func(required []string, properties map[string]apiextensionsv1.JSONSchemaProps) apiextensionsv1.JSONSchemaProps {
		return apiextensionsv1.JSONSchemaProps{Type: "object", Required: required, Properties: properties}
	}
	schema := object(nil, map[string]apiextensionsv1.JSONSchemaProps{
		"spec": object([]string{"interface", "network"}, map[string]apiextensionsv1.JSONSchemaProps{"network": text, "interface": text, "ipRequests": texts}),
		"status": object([]string{"ips"}, map[string]apiextensionsv1.JSONSchemaProps{
			"ips": texts, "ownerPod": object([]string{"name"}, map[string]apiextensionsv1.JSONSchemaProps{"name": text}),
			"conditions": {Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &condition}},
		}),
	})
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "ipamclaims.k8s.cni.cncf.io"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "k8s.cni.cncf.io", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: "IPAMClaim", Plural: "ipamclaims"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1alpha1", Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				Schema:       &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &schema},
			}},
		},
	}
	create(t, c, crd)
	t.Cleanup(func() {
		if err := c.Client.Delete(context.Background(), crd); err != nil {
			t.Error(err)
		}
	})
}

// reference creates an IPAMClaim.
func (w *ipamClaimTest) reference(t *testing.T, name string, requests ...any) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"network": "lan", "interface": "net1", "ipRequests": requests}}}
	o.SetAPIVersion("k8s.cni.cncf.io/v1alpha1")
	o.SetKind("IPAMClaim")
	o.SetNamespace(w.c.Namespace)
	o.SetName(name)
	w.c.Eventually(t, "IPAMClaim "+name, func(ctx context.Context) error { return w.c.Client.Create(ctx, o) })
	return o
}

// references creates a pod that references an IPAMClaim.
func (w *ipamClaimTest) references(name, claim string) *corev1.Pod {
	return w.c.Pod(name, "node-x", func(p *corev1.Pod) {
		p.Annotations = map[string]string{pod.AnnotationNetworks: fmt.Sprintf(`[{"name":"lan","ipam-claim-reference":%q}]`, claim)}
	})
}

// net1 waits for the record of a pod and returns the addresses of its further interface.
func (w *ipamClaimTest) net1(t *testing.T, p *corev1.Pod) []string {
	t.Helper()
	r := &v1alpha1.PodAttachment{}
	key := types.NamespacedName{Namespace: p.Namespace, Name: pod.AttachmentName(p.Name, p.UID)}
	w.c.Eventually(t, "the network of pod "+p.Name, func(ctx context.Context) error { return w.c.Client.Get(ctx, key, r) })
	return r.Spec.Interfaces[1].Addresses
}

// shows waits until the status of an IPAMClaim has the addresses and the owner, and a
// condition with the reason and a text in its message.
func (w *ipamClaimTest) shows(t *testing.T, o *unstructured.Unstructured, ips []string, owner, reason, text string) {
	t.Helper()
	w.c.Eventually(t, fmt.Sprintf("IPAMClaim %s to show %v of %q", o.GetName(), ips, owner), func(ctx context.Context) error {
		now := o.DeepCopy()
		if err := w.c.Client.Get(ctx, client.ObjectKeyFromObject(o), now); err != nil {
			return err
		}
		has, _, _ := unstructured.NestedStringSlice(now.Object, "status", "ips")
		of, _, _ := unstructured.NestedString(now.Object, "status", "ownerPod", "name")
		conditions, _, _ := unstructured.NestedSlice(now.Object, "status", "conditions")
		if diff := cmp.Diff(ips, has); diff != "" || of != owner || len(conditions) != 1 {
			return fmt.Errorf("its status is %v", now.Object["status"])
		}
		first, _ := conditions[0].(map[string]any)
		if message, _ := first["message"].(string); first["reason"] != reason || (first["status"] == "True") != (reason == "SuccessfulAllocation") || !strings.Contains(message, text) {
			return fmt.Errorf("its condition is %v", first)
		}
		return nil
	})
}

func (w *ipamClaimTest) kept(t *testing.T) {
	o := w.reference(t, "vm.lan")
	first := w.references("first", "vm.lan")
	has := w.net1(t, first)
	w.shows(t, o, has, "first", "SuccessfulAllocation", "ipamclaim.vm.lan")
	second := w.references("second", "vm.lan")
	w.refused(t, second, "NetworkConflict", "is still held by")
	w.shows(t, o, has, "first", "SuccessfulAllocation", "") // the pod that waits does not spoil it
	w.delete(t, first)
	if diff := cmp.Diff(has, w.net1(t, second)); diff != "" {
		t.Errorf("the second pod (-first +second):\n%s", diff)
	}
	w.shows(t, o, has, "second", "SuccessfulAllocation", "")
	w.delete(t, second)
	w.shows(t, o, has, "", "SuccessfulAllocation", "")
	address, _, _ := strings.Cut(has[0], "/")
	w.slot(t, address, ipam.Held)
	w.delete(t, o)
	w.slot(t, address, ipam.Freed)
}

func (w *ipamClaimTest) requests(t *testing.T) {
	o := w.reference(t, "wants", "10.9.0.5/29")
	first := w.references("wants-first", "wants")
	if diff := cmp.Diff([]string{"10.9.0.5/29"}, w.net1(t, first)); diff != "" {
		t.Error(diff)
	}
	w.shows(t, o, []string{"10.9.0.5/29"}, "wants-first", "SuccessfulAllocation", "")
	same := w.reference(t, "wants-too", "10.9.0.5/29")
	w.references("wants-second", "wants-too")
	w.shows(t, same, []string{}, "wants-second", "IPAddressConflict", "10.9.0.5 is held by")
	outside := w.reference(t, "outside", "10.77.0.5/29")
	w.references("wants-third", "outside")
	w.shows(t, outside, []string{}, "wants-third", "AllocationRefused", "in no range of pool kv")
}

// An IPAMClaim that is deleted and created anew has an IPClaim of its own, with the address
// that the former had.
func (w *ipamClaimTest) again(t *testing.T) {
	o := w.reference(t, "again")
	first := w.references("again-first", "again")
	has := w.net1(t, first)
	w.shows(t, o, has, "again-first", "SuccessfulAllocation", "")
	w.delete(t, o)
	o = w.reference(t, "again")
	w.delete(t, first)
	// Until its cache shows the new IPAMClaim, the controller takes it for the former one
	// (docs/operator/limits.md).
	w.c.Eventually(t, "the former IPClaim to go", func(ctx context.Context) error {
		err := w.c.Client.Get(ctx, types.NamespacedName{Namespace: w.c.Namespace, Name: "ipamclaim.again"}, &v1alpha1.IPClaim{})
		if err == nil {
			return errors.New("it is still there")
		}
		return client.IgnoreNotFound(err)
	})
	second := w.references("again-second", "again")
	if diff := cmp.Diff(has, w.net1(t, second)); diff != "" {
		t.Errorf("the second pod (-first +second):\n%s", diff)
	}
	w.shows(t, o, has, "again-second", "SuccessfulAllocation", "")
	claim := w.claim(t, "ipamclaim.again", "be of the second pod", func(s v1alpha1.IPClaimStatus) bool { return s.Pod == "again-second" })
	if of := claim.OwnerReferences[0].UID; of != o.GetUID() {
		t.Errorf("the IPClaim is that of the IPAMClaim %s, want %s", of, o.GetUID())
	}
}
