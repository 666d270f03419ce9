package deploy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/kubeclient"
)

// asController returns a client in the name of the controller with an administrator's rights,
// which is the way round the policy.
func asController(t *testing.T, c *cluster.Cluster) client.Client {
	t.Helper()
	api, err := kubeclient.New(cluster.AsController(c.REST))
	if err != nil {
		t.Fatal(err)
	}
	return api
}

// refusedByHand returns an error unless the policy refused a write.
func refusedByHand(err error) error {
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "only the controller of Fairlead writes") {
		return fmt.Errorf("error %w; want a refusal by the policy", err)
	}
	return nil
}

// testObjectsByHand writes the controller's objects as an administrator, as the controller,
// and as Kubernetes.
func testObjectsByHand(t *testing.T, c *cluster.Cluster) {
	ctx, way := t.Context(), asController(t, c)
	_, account, err := kubeclient.Connect(c.Account(cluster.ControllerAccount, ""))
	if err != nil {
		t.Fatal(err)
	}
	block := &v1alpha1.IPBlock{ObjectMeta: metav1.ObjectMeta{Name: "by-hand.4-0a630100", Labels: map[string]string{"test": "by-hand"}}}
	block.Spec = v1alpha1.IPBlockSpec{Domain: "by-hand", CIDR: "10.99.1.0/26", Used: 1, Slots: []string{"1 A 1 1 uid-a shop/a/eth0 node-1"}}
	// The API server takes a moment until a new policy is in force.
	c.Eventually(t, "the policy to be in force", func(ctx context.Context) error {
		return refusedByHand(c.Client.Create(ctx, block.DeepCopy(), client.DryRunAll))
	})
	if err := account.Create(ctx, block); err != nil {
		t.Fatalf("the controller creates a block: %v", err)
	}
	record := recordByHand("default", "by-hand")
	if err := account.Create(ctx, record); err != nil {
		t.Fatalf("the controller creates a record: %v", err)
	}
	patch := func(o client.Object, text string) func(client.Client) error {
		return func(api client.Client) error {
			return api.Patch(ctx, o.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, []byte(text)))
		}
	}
	for _, tt := range []struct {
		name    string
		write   func(api client.Client) error
		allowed bool
	}{
		{"slots", patch(block, `{"spec":{"slots":null}}`), false},
		{"a block's label", patch(block, `{"metadata":{"labels":{"fairlead.dev/domain":"other"}}}`), false},
		{"a block's finalizer", patch(block, `{"metadata":{"finalizers":["example.com/f"]}}`), false},
		{"a block's annotation", patch(block, `{"metadata":{"annotations":{"note":"mine"}}}`), true},
		{"a block that stays the same", func(api client.Client) error {
			same := &v1alpha1.IPBlock{}
			return errors.Join(api.Get(ctx, client.ObjectKeyFromObject(block), same), api.Update(ctx, same))
		}, true},
		{"a block deleted", func(api client.Client) error { return api.Delete(ctx, block.DeepCopy()) }, false},
		{"all blocks deleted", func(api client.Client) error {
			return api.DeleteAllOf(ctx, &v1alpha1.IPBlock{}, client.MatchingLabels{"test": "by-hand"})
		}, false},
		{"a record created", func(api client.Client) error {
			return api.Create(ctx, recordByHand("default", "another"), client.DryRunAll)
		}, false},
		{"a record's finalizer", patch(record, `{"metadata":{"finalizers":null}}`), false},
		{"a record's owner", patch(record, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"a","uid":"b"}]}}`), false},
		{"a record's label", patch(record, `{"metadata":{"labels":{"a":"b"}}}`), false},
		{"a record's interfaces", patch(record, `{"spec":{"unplug":["eth0"]}}`), false},
		{"a record deleted", func(api client.Client) error { return api.Delete(ctx, record.DeepCopy()) }, false},
		{"a pool of ports", func(api client.Client) error {
			o := &v1alpha1.PortPool{ObjectMeta: metav1.ObjectMeta{Name: "by-hand"}, Spec: v1alpha1.PortPoolSpec{Node: "node-a", Host: "node-a", Network: "pods"}}
			return api.Create(ctx, o, client.DryRunAll)
		}, false},
	} {
		err := tt.write(c.Client)
		if !tt.allowed {
			if refusal := refusedByHand(err); refusal != nil {
				t.Errorf("%s: %v", tt.name, refusal)
			}
		} else if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	for name, err := range map[string]error{
		"a finalizer taken off by the controller":  patch(record, `{"metadata":{"finalizers":null}}`)(account),
		"a record deleted by the controller":       account.Delete(ctx, record),
		"slots emptied in the controller's name":   patch(block, `{"spec":{"slots":null,"used":0}}`)(way),
		"a block deleted in the controller's name": way.Delete(ctx, block),
	} {
		if client.IgnoreNotFound(err) != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	testKubernetesDeletes(t, c, way)
}

func recordByHand(namespace, name string) *v1alpha1.PodAttachment {
	return &v1alpha1.PodAttachment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Finalizers: []string{v1alpha1.ReleaseFinalizer}},
		Spec: v1alpha1.PodAttachmentSpec{
			PodName: name, PodUID: "4ad91b5c-d4a4-4cf0-8bd3-9f0b2a3b6b1c", NodeName: "node-a",
			Interfaces: []v1alpha1.Interface{{
				Name: "eth0", Network: v1alpha1.DefaultNetwork, Driver: "native", Default: true, Addresses: []string{"10.244.0.1/32"},
				Binding: v1alpha1.Binding{Routed: &v1alpha1.RoutedBinding{}},
			}},
		},
	}
}

// testKubernetesDeletes checks that Kubernetes deletes a record with its owner and with its
// namespace.
func testKubernetesDeletes(t *testing.T, c *cluster.Cluster, way client.Client) {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "by-hand"}}
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "by-hand"}}
	for _, o := range []client.Object{namespace, owner} {
		if err := c.Client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	inNamespace, owned := recordByHand("by-hand", "ends"), recordByHand("default", "owned")
	inNamespace.Finalizers, owned.Finalizers = nil, nil
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}}
	for _, o := range []client.Object{inNamespace, owned} {
		if err := way.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range []client.Object{namespace, owner} {
		if err := c.Client.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range []client.Object{inNamespace, owned, namespace} {
		c.Eventually(t, "the end of "+o.GetName(), func(ctx context.Context) error {
			err := c.Client.Get(ctx, client.ObjectKeyFromObject(o), o)
			if err == nil {
				err = errors.New("it is there")
			}
			return client.IgnoreNotFound(err)
		})
	}
}
