package native

import (
	"context"
	"fmt"
	"slices"
	"sync"

	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/internal/run"
)

// macs knows the MACs that interfaces have by request or by their claim. Two interfaces in
// one domain may be on one link, where a MAC must be unique. Two leaders at once may each
// give a MAC: unlike an address, it has no record that only one of them can write.
type macs struct {
	mu sync.Mutex
	// holders of each MAC.
	holders map[macKey][]ipam.Holder
}

type macKey struct{ domain, mac string }

// MACTakenError is the reason why a requested MAC is not available. Error is for the user
// who asked and reveals nothing of other namespaces; Detail is for operators.
type MACTakenError struct {
	MAC, Domain   string
	Asker, Holder ipam.Holder
}

// Error names the holder only if it is in the asker's namespace.
func (e *MACTakenError) Error() string {
	if e.Holder.Namespace != e.Asker.Namespace {
		return fmt.Sprintf("MAC %s is that of another pod in domain %s: ask for another, or for none", e.MAC, e.Domain)
	}
	return e.Detail()
}

// Detail names the holder.
func (e *MACTakenError) Detail() string {
	return fmt.Sprintf("MAC %s is that of %s in domain %s: ask for another, or for none", e.MAC, e.Holder, e.Domain)
}

// enter notes that h has a MAC. It fails with *MACTakenError if another holder has it. The
// holders in beside may have it too. has reports whether a holder has any address in the
// domain still: without one it has no interface there.
func (m *macs) enter(k macKey, h ipam.Holder, beside []ipam.Holder, has func(h ipam.Holder, domain string) bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := slices.DeleteFunc(m.holders[k], func(o ipam.Holder) bool { return !o.Same(h) && !has(o, k.domain) })
	for _, o := range known {
		if !o.Same(h) && !slices.ContainsFunc(beside, o.Same) {
			m.holders[k] = known
			return &MACTakenError{MAC: k.mac, Domain: k.domain, Asker: h, Holder: o}
		}
	}
	m.put(k, append(known, h))
	return nil
}

// leave notes that h does not have a MAC any more.
func (m *macs) leave(k macKey, h ipam.Holder) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.put(k, slices.DeleteFunc(m.holders[k], h.Same))
}

// put sets the holders of a MAC; the last of them may be in the list twice.
func (m *macs) put(k macKey, holders []ipam.Holder) {
	if n := len(holders); n > 1 && slices.ContainsFunc(holders[:n-1], holders[n-1].Same) {
		holders = holders[:n-1]
	}
	if len(holders) == 0 {
		delete(m.holders, k)
		return
	}
	if m.holders == nil {
		m.holders = map[macKey][]ipam.Holder{}
	}
	m.holders[k] = holders
}

// recorded notes the MACs of a PodAttachment.
func (m *macs) recorded(r *v1alpha1.PodAttachment) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, h := range macsOf(r) {
		m.put(k, append(slices.DeleteFunc(m.holders[k], h.Same), h))
	}
}

// macsOf returns the holders of the MACs in a PodAttachment.
func macsOf(r *v1alpha1.PodAttachment) map[macKey]ipam.Holder {
	out := map[macKey]ipam.Holder{}
	for i := range r.Spec.Interfaces {
		iface := &r.Spec.Interfaces[i]
		if iface.MAC == "" || iface.Domain == "" {
			continue
		}
		of := pod.HolderOf(r)
		out[macKey{iface.Domain, iface.MAC}] = ipam.Holder{PodUID: string(of.UID), Interface: iface.Name, Namespace: of.Namespace, Pod: of.Name, Node: r.Spec.NodeName}
	}
	return out
}

// WatchMACs watches the PodAttachments, whose interfaces have MACs.
func (d *Driver) WatchMACs(ctx context.Context, informers ctrlcache.Informers) error {
	records, err := informers.GetInformer(ctx, &v1alpha1.PodAttachment{}, ctrlcache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch PodAttachments: %w", err)
	}
	_, err = run.Observe(records, func(_, is *v1alpha1.PodAttachment) { d.macs.recorded(is) }, func(o *v1alpha1.PodAttachment) {
		for k, h := range macsOf(o) {
			d.macs.leave(k, h)
		}
	})
	if err != nil {
		return fmt.Errorf("watch PodAttachments: %w", err)
	}
	return nil
}

// enterMAC notes the MAC of a request's interface. Errors: fault.ErrConflict if another
// interface of the domain has it.
func (d *Driver) enterMAC(domain, mac string, r *request) error {
	if mac == "" {
		return nil
	}
	if err := d.macs.enter(macKey{domain, mac}, HolderOf(r.Owner), r.sources, d.hasAddress); err != nil {
		return fmt.Errorf("%w: %w", fault.ErrConflict, err)
	}
	return nil
}

// hasAddress reports whether a holder has an address of a domain.
func (d *Driver) hasAddress(h ipam.Holder, domain string) bool {
	return slices.ContainsFunc(d.store.Held(h), func(l block.Lease) bool { return l.Domain == domain })
}
