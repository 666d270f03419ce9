package native

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/pod"
)

// This file serves live migrations of virtual machines (docs/adr/0020).

// launchers is the part of Machines that the driver uses.
type launchers interface {
	// Sources returns the pods from which a machine may migrate to a launcher in the
	// namespace. Errors: fault.ErrUnavailable.
	Sources(ctx context.Context, namespace string, target pod.Launcher) ([]pod.Identity, error)
	// Exists reports whether the instance of a launcher exists. Errors:
	// fault.ErrUnavailable.
	Exists(ctx context.Context, namespace string, l pod.Launcher) (bool, error)
}

// Machines knows the virtual machines of KubeVirt.
type Machines struct {
	// Cache has the pods.
	Cache client.Reader
	// Live reads from the API server.
	Live client.Reader
}

// Sources implements launchers. It reads the cache only.
func (m Machines) Sources(ctx context.Context, namespace string, target pod.Launcher) ([]pod.Identity, error) {
	var pods corev1.PodList
	err := m.Cache.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels{pod.LabelInstance: string(target.Instance.UID)}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("%w: list the launchers of machine %s/%s: %w", fault.ErrUnavailable, namespace, target.Instance.Name, err)
	}
	var out []pod.Identity
	for i := range pods.Items {
		if l, ok := pod.LauncherOf(&pods.Items[i]); ok && target.MigratesFrom(l) {
			out = append(out, pod.IdentityOf(&pods.Items[i]))
		}
	}
	return out, nil
}

// Exists implements launchers.
func (m Machines) Exists(ctx context.Context, namespace string, l pod.Launcher) (bool, error) {
	o := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: l.Instance.APIVersion, Kind: l.Instance.Kind}}
	err := m.Live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: l.Instance.Name}, o)
	switch {
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("%w: read VirtualMachineInstance %s/%s: %w", fault.ErrUnavailable, namespace, l.Instance.Name, err)
	}
	return o.UID == l.Instance.UID, nil
}

// migrate prepares the request of the target of a live migration. It notes the sources. An
// address of a source without a claim is given a claim of its own, which lasts until the
// machine stops: the guest may go on using it. held are the addresses that the pod has
// already. Errors: fault.ErrUnavailable.
func (d *Driver) migrate(ctx context.Context, r *request, held []block.Lease) error {
	if d.cfg.Machines == nil || r.Launcher.Migration == "" {
		return nil
	}
	sources, err := d.cfg.Machines.Sources(ctx, r.Namespace, r.Launcher)
	if err != nil {
		return err
	}
	for _, id := range sources {
		h := ipam.Holder{PodUID: string(id.UID), Interface: r.Interface, Namespace: id.Namespace, Pod: id.Name, Node: id.Node}
		r.sources = append(r.sources, h)
		if len(held) > 0 {
			continue // kept before the pod got its own
		}
		if err := d.keepUntilStopped(ctx, r, h); err != nil {
			return err
		}
	}
	return nil
}

// keepUntilStopped gives the addresses that a source has without a claim a claim of the
// machine's instance. The first address of each family shares one; any further address has
// its own.
func (d *Driver) keepUntilStopped(ctx context.Context, r *request, source ipam.Holder) error {
	held := d.store.Held(source)
	if !slices.ContainsFunc(held, func(l block.Lease) bool { return l.Claim == "" }) {
		return nil
	}
	if exists, err := d.cfg.Machines.Exists(ctx, r.Namespace, r.Launcher); err != nil || !exists {
		return err
	}
	count := map[ipam.Family]int{}
	for _, l := range held {
		name := pod.ClaimOn(pod.AttachmentName(source.Pod, types.UID(source.PodUID)), source.Interface)
		if count[ipam.FamilyOf(l.Addr)]++; count[ipam.FamilyOf(l.Addr)] > 1 {
			name += "." + strconv.Itoa(count[ipam.FamilyOf(l.Addr)])
		}
		if l.Claim != "" {
			continue // an earlier try may have kept it
		}
		key := types.NamespacedName{Namespace: r.Namespace, Name: name}
		making := Making{Owner: &r.Launcher.Instance, UntilStopped: true, Serves: func() error { return nil }}
		if _, err := d.cfg.Claims.Obtain(ctx, key, making); err != nil {
			return fmt.Errorf("keep %s of %s until its machine stops: %w", l.Addr, source.Pod, err)
		}
		if err := d.store.Keep(ctx, l, key.String()); err != nil {
			return fmt.Errorf("keep %s of %s until its machine stops: %w", l.Addr, source.Pod, err)
		}
	}
	return nil
}

// joins reports whether the pod will share an address of its claim in a pool with a
// source. It then needs no further address.
func (d *Driver) joins(pool Pool, r *request) bool {
	key, ok := claimOf(pool, r)
	return ok && len(r.sources) > 0 && slices.ContainsFunc(d.cfg.Claims.Has(key), func(l block.Lease) bool {
		return l.Domain == pool.Domain() && pool.Covers(l.Addr) && slices.ContainsFunc(r.sources, l.Holder.Same)
	})
}
