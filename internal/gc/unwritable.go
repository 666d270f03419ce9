package gc

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
)

// split divides the interfaces of an orphan into those that a record can name and those
// that no valid record can name. Earlier versions took interfaces without this check.
func split(o *orphan) (writable, unwritable []part) {
	for _, p := range o.parts {
		// The addresses do not matter: a record may have named some of them.
		named := v1alpha1.Interface{Name: p.ref.Interface.Name, Network: v1alpha1.DefaultNetwork, Driver: p.ref.Interface.Driver, Binding: p.ref.Interface.Binding}
		if pod.Record(o.pod, []v1alpha1.Interface{named}).Spec.Validate() == nil {
			writable = append(writable, p)
		} else {
			unwritable = append(unwritable, p)
		}
	}
	return writable, unwritable
}

// releaseUnwritable releases an interface that no record can name. A node plugs only
// interfaces of a record, and the API server refuses every record that would name this one.
// So it was never plugged, and no acknowledgement of a node is needed.
func (c *Collector) releaseUnwritable(ctx context.Context, p part) error {
	ref := p.ref
	if err := c.cfg.Drivers[p.driver].Driver.Release(ctx, ref); err != nil {
		return fmt.Errorf("release %v of pod %s/%s, which no PodAttachment can name: %w", ref.Interface.Addresses, ref.Namespace, ref.PodName, err)
	}
	log.FromContext(ctx).Info("released an interface that no PodAttachment can name", "pod", ref.Namespace+"/"+ref.PodName, "uid", ref.PodUID,
		"interface", ref.Owner.Interface, "addresses", ref.Interface.Addresses)
	return nil
}
