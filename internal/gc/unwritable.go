package gc

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
)

// writable parts what drivers hold for an orphan into what a record can name, and
// what none ever could: what versions took that did not look at it before.
func writable(o *orphan) (parts, never []part) {
	for _, p := range o.parts {
		// What its addresses are does not matter: a record may have named some of them.
		named := v1alpha1.Interface{Name: p.ref.Interface.Name, Network: v1alpha1.DefaultNetwork, Driver: p.ref.Interface.Driver, Binding: p.ref.Interface.Binding}
		if pod.Record(o.pod, []v1alpha1.Interface{named}).Spec.Validate() == nil {
			parts = append(parts, p)
		} else {
			never = append(never, p)
		}
	}
	return parts, never
}

// forgo gives back what no record can name. A node plugs what a record says and
// nothing else, and the API server has refused each that would name it: so it was
// never plugged anywhere, and no node's word is needed.
func (c *Collector) forgo(ctx context.Context, p part) error {
	ref := p.ref
	if err := c.cfg.Drivers[p.driver].Driver.Release(ctx, ref); err != nil {
		return fmt.Errorf("give back %v of pod %s/%s, which no PodAttachment can name: %w", ref.Interface.Addresses, ref.Namespace, ref.PodName, err)
	}
	log.FromContext(ctx).Info("gave back what was taken and could never be written down", "pod", ref.Namespace+"/"+ref.PodName, "uid", ref.PodUID,
		"interface", ref.Owner.Interface, "addresses", ref.Interface.Addresses)
	return nil
}
