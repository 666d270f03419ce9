package cluster

import (
	"context"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// installCRDs applies the CRDs of this build and returns when they are served.
func installCRDs(ctx context.Context, api client.Client) error {
	crds, err := v1alpha1.CRDs()
	if err != nil {
		return err
	}
	for _, crd := range crds {
		if err := installCRD(ctx, api, crd.DeepCopy()); err != nil {
			return fmt.Errorf("CRD %s: %w", crd.Name, err)
		}
	}
	return AwaitServed(ctx, api, crds...)
}

func installCRD(ctx context.Context, api client.Client, crd *apiextensionsv1.CustomResourceDefinition) error {
	err := api.Create(ctx, crd)
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	present := &apiextensionsv1.CustomResourceDefinition{}
	if err := api.Get(ctx, client.ObjectKeyFromObject(crd), present); err != nil {
		return err
	}
	crd.ResourceVersion = present.ResourceVersion
	return api.Update(ctx, crd) // no change if it is equal
}

// AwaitServed returns when objects of all kinds can be listed: the condition Established is
// set a moment too early.
func AwaitServed(ctx context.Context, api client.Client, crds ...*apiextensionsv1.CustomResourceDefinition) error {
	for _, crd := range crds {
		list := newList(crd)
		var last error
		err := wait.PollUntilContextCancel(ctx, tick, true, func(ctx context.Context) (bool, error) {
			last = api.List(ctx, list, client.Limit(1))
			return last == nil, nil
		})
		if err != nil {
			return fmt.Errorf("CRD %s is not served: %w", crd.Name, last)
		}
	}
	return nil
}
