package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/harness"
)

const byOperator = "operator"

// healTime is how long it may take to heal a deletion or an edit by hand.
const healTime = time.Minute

// operatorAttacks are mistakes of an operator. An operator has all rights.
func operatorAttacks() []attack {
	slip := func(id, tries string, do func(ctx context.Context, w *testbed) (effect, error)) attack {
		return attack{id: id, by: byOperator, tries: tries, heals: true, do: do}
	}
	return []attack{
		slip("blocks-deleted", "kubectl delete ipblocks --all, and the leader dies", func(ctx context.Context, w *testbed) (effect, error) {
			return w.blocksDeleted(ctx)
		}),
		slip("blocks-deleted-anyway", "the same, without the policy against it and while no controller runs", func(ctx context.Context, w *testbed) (effect, error) {
			if err := errors.Join(w.dropPolicies(ctx, func(name string) bool { return name == onlyController }), w.awaitPolicy(ctx, false)); err != nil {
				return effect{}, err
			}
			w.standby.Kill()
			w.leading.Kill()
			out, err := w.blocksDeleted(ctx)
			return out, errors.Join(err, w.applyRights(ctx), w.awaitPolicy(ctx, true))
		}),
		slip("block-emptied", "an IPBlock in use is edited to be empty, and a pod asks for an address of it", func(ctx context.Context, w *testbed) (effect, error) {
			return w.blockEmptied(ctx)
		}),
		slip("objects-by-hand", "an IPBlock in use is edited and deleted, the victim's PodAttachment deleted and its finalizer taken off",
			func(ctx context.Context, w *testbed) (effect, error) { return w.writesByHand(ctx) }),
		slip("record-deleted", "the victim's PodAttachment is deleted by hand", func(ctx context.Context, w *testbed) (effect, error) { return w.recordDeleted(ctx) }),
		slip("nodenetwork-deleted", "a NodeNetwork is deleted by hand", func(ctx context.Context, w *testbed) (effect, error) {
			before := networkOf(w.nodes[0].Name)
			if err := w.fresh(ctx, before); err != nil {
				return effect{}, err
			}
			if err := w.Delete(ctx, networkOf(w.nodes[0].Name)); err != nil {
				return mustBeRefused(err)
			}
			// The deleted one stays until its entries in the cloud are gone.
			seen, err := within(ctx, healTime, func(ctx context.Context) (bool, error) {
				now := networkOf(w.nodes[0].Name)
				err := w.fresh(ctx, now)
				return now.UID != before.UID && len(now.Spec.Blocks) > 0 && len(now.Status.Addresses) > 0, client.IgnoreNotFound(err)
			})
			return effect{!seen, "it is there again with blocks and addresses: " + fmt.Sprint(seen)}, err
		}),
		slip("pool-deleted", "the default network's pool is deleted by hand and made again", func(ctx context.Context, w *testbed) (effect, error) {
			if err := w.Delete(ctx, &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "default"}}); err != nil {
				return mustBeRefused(err)
			}
			if err := w.Create(ctx, pools()[0]); err != nil {
				return effect{}, err
			}
			if err := w.patchPool(ctx, "default", fmt.Sprintf(`{"spec":{"maxBlocksPerNode":%d}}`, boundOfBlocks)); err != nil {
				return effect{}, err
			}
			return w.othersServed(ctx)
		}),
		slip("rules-deleted", "the node's nftables are deleted by hand, and a pod sends as another", func(ctx context.Context, w *testbed) (effect, error) {
			for _, family := range []string{"bridge", "arp", "inet"} {
				if _, err := w.nft(ctx, w.nodes[0], "delete", "table", family, "fairlead"); err != nil {
					return effect{}, err
				}
			}
			return attackNamed("spoof-ipv4").do(ctx, w)
		}),
		slip("leader-stalls", "the leader hangs while another takes over, and goes on", func(ctx context.Context, w *testbed) (effect, error) { return w.leaderStalls(ctx) }),
	}
}

func attackNamed(id string) attack {
	all := attacks()
	return all[slices.IndexFunc(all, func(a attack) bool { return a.id == id })]
}

// othersServed creates pods on both nodes, waits until each has an address, checks that
// no address has two holders, and removes the pods.
func (w *testbed) othersServed(ctx context.Context) (effect, error) {
	var pods []*corev1.Pod
	for i := range 6 {
		pod := newPod(other, fmt.Sprintf("next-%d", i), w.nodes[i%2].Name, nil)
		if err := w.Create(ctx, pod); err != nil {
			return effect{}, err
		}
		pods = append(pods, pod)
	}
	for _, pod := range pods {
		err := await(ctx, "the address of pod "+pod.Name, func(ctx context.Context) (string, error) {
			record, err := w.recordOf(ctx, pod)
			if record == nil {
				note, noteErr := w.noteOn(ctx, pod)
				return "none; " + note, errors.Join(err, noteErr)
			}
			return "", err
		})
		if err != nil {
			return effect{}, err
		}
	}
	twice, err := w.twice(ctx)
	if err != nil {
		return effect{}, err
	}
	out := effect{len(twice) > 0, fmt.Sprintf("6 new pods have addresses; given twice: %v", twice)}
	return out, w.remove(ctx, pods...)
}

// blocksDeleted deletes all blocks and changes the leader.
func (w *testbed) blocksDeleted(ctx context.Context) (effect, error) {
	deleteErr := w.DeleteAllOf(ctx, &v1alpha1.IPBlock{})
	if err := w.changeLeader(ctx); err != nil {
		return effect{}, err
	}
	if deleteErr != nil {
		return mustBeRefused(deleteErr)
	}
	out, err := w.othersServed(ctx)
	if err != nil || out.succeeded {
		return out, err
	}
	return w.healed(ctx)
}

func (w *testbed) blockEmptied(ctx context.Context) (effect, error) {
	blocks, err := w.blocks(ctx)
	if err != nil {
		return effect{}, err
	}
	cidr := ipam.BlockOf(w.victims.db.addresses[0]).String()
	at := slices.IndexFunc(blocks, func(b v1alpha1.IPBlock) bool { return b.Spec.CIDR == cidr })
	if at < 0 {
		return effect{}, fmt.Errorf("there is no block %s", cidr)
	}
	block := &blocks[at]
	block.Spec.Slots, block.Spec.Used = nil, 0
	if err := w.Update(ctx, block); err != nil {
		return mustBeRefused(err)
	}
	pod := newPod(other, "wants", w.nodes[0].Name, map[string]string{v1alpha1.AnnotationAddresses: dbAddress(w)})
	f, err := w.try(ctx, w, pod)
	if err != nil {
		return effect{}, err
	}
	if hasDB(w, f) {
		return effect{true, f.String()}, w.remove(ctx, pod)
	}
	if err := w.remove(ctx, pod); err != nil {
		return effect{}, err
	}
	return w.healed(ctx)
}

// onlyController is the policy that only the controller writes its objects.
const onlyController = "fairlead-controller-only"

// writesByHand tries writes of objects that only the controller writes, without an effect.
func (w *testbed) writesByHand(ctx context.Context) (effect, error) {
	blocks, err := w.blocks(ctx)
	if err != nil {
		return effect{}, err
	}
	used := slices.IndexFunc(blocks, func(b v1alpha1.IPBlock) bool { return b.Spec.Used > 0 })
	record, err := w.recordOf(ctx, w.victims.db.Pod)
	if err != nil || used < 0 || record == nil {
		return effect{}, fmt.Errorf("no block in use, or no record: %w", err)
	}
	emptied := blocks[used].DeepCopy()
	emptied.Spec.Slots, emptied.Spec.Used = nil, 0
	var done []string
	for what, write := range map[string]func() error{
		"block edited":   func() error { return w.Update(ctx, emptied, client.DryRunAll) },
		"block deleted":  func() error { return w.Delete(ctx, &blocks[used], client.DryRunAll) },
		"record deleted": func() error { return w.Delete(ctx, record.DeepCopy(), client.DryRunAll) },
		"finalizer removed": func() error {
			return w.Patch(ctx, record.DeepCopy(), patchOf(`{"metadata":{"finalizers":null}}`), client.DryRunAll)
		},
	} {
		switch err := write(); {
		case err == nil:
			done = append(done, what)
		case !refused(err) && !apierrors.IsConflict(err): // the controller has written it meanwhile
			return effect{}, fmt.Errorf("%s: %w", what, err)
		}
	}
	slices.Sort(done)
	return effect{len(done) > 0, fmt.Sprintf("done in a dry run: %v", done)}, nil
}

// healed waits until nothing is wrong with the victims' objects.
func (w *testbed) healed(ctx context.Context) (effect, error) {
	var wrong []string
	start := time.Now()
	seen, err := within(ctx, healTime, func(ctx context.Context) (bool, error) {
		var err error
		wrong, err = w.victimsObjects(ctx, "")
		return len(wrong) == 0, err
	})
	if !seen {
		return effect{true, fmt.Sprintf("not healed within %v: %v", healTime, wrong)}, err
	}
	return effect{false, fmt.Sprintf("healed after %.1f s", time.Since(start).Seconds())}, err
}

// recordTime is how long a record that was deleted by hand is watched.
const recordTime = 6 * time.Second

// recordDeleted deletes the record of a live pod. The API server cannot undo that: the
// record has to stay until the pod ends, because it explains the pod's addresses.
func (w *testbed) recordDeleted(ctx context.Context) (effect, error) {
	record, err := w.recordOf(ctx, w.victims.db.Pod)
	if err != nil {
		return effect{}, err
	}
	if err := w.Delete(ctx, record); err != nil {
		return mustBeRefused(err)
	}
	w.byHand = w.victims.db.UID
	since := time.Now()
	defer func() { w.byHand = "" }()
	harm := ""
	_, err = within(ctx, recordTime, func(ctx context.Context) (bool, error) {
		if err := w.pause(ctx); err != nil {
			return false, err
		}
		harm, err = w.noticed(ctx, since, "")
		return harm != "", err
	})
	if err != nil {
		return effect{}, err
	}
	out := effect{harm != "", "the pod keeps its addresses and its traffic"}
	if harm != "" {
		out.got = harm
	}
	return out, w.repair(ctx)
}

// changeLeader kills the leader. The standby leads, or a new controller if the standby
// was killed too. Then a new standby is started.
func (w *testbed) changeLeader(ctx context.Context) (err error) {
	before, err := w.leaderName(ctx)
	if err != nil {
		return err
	}
	w.leading.Kill()
	w.leading = w.standby
	select {
	case <-w.leading.Done():
		if w.leading, err = w.nextController(); err != nil {
			return err
		}
	default:
	}
	if err := w.awaitLeader(ctx, before); err != nil {
		return err
	}
	w.standby, err = w.nextController()
	return err
}

// leaderName returns the holder of the Lease; empty if there is none.
func (w *testbed) leaderName(ctx context.Context) (string, error) {
	lease := &coordinationv1.Lease{}
	err := w.Get(ctx, client.ObjectKey{Namespace: cluster.AccountNamespace, Name: cluster.ControllerAccount}, lease)
	if err != nil || lease.Spec.HolderIdentity == nil {
		return "", client.IgnoreNotFound(err)
	}
	return *lease.Spec.HolderIdentity, nil
}

// awaitLeader waits until another controller leads.
func (w *testbed) awaitLeader(ctx context.Context, before string) error {
	return await(ctx, "a leader", func(ctx context.Context) (string, error) {
		name, err := w.leaderName(ctx)
		if name == "" || name == before {
			return fmt.Sprintf("the Lease names %q", name), err
		}
		return "", err
	})
}

func (w *testbed) nextController() (*harness.Process, error) {
	w.changes++
	return w.startController(fmt.Sprintf("controller-%d", 2+w.changes), map[string]any{"metricsAddress": "0"})
}

// leaderStalls stops the leader until the standby serves, and then continues it.
func (w *testbed) leaderStalls(ctx context.Context) (effect, error) {
	before, err := w.leaderName(ctx)
	if err != nil {
		return effect{}, err
	}
	var out effect
	err = stopped(w.leading, func() (err error) {
		if err := w.awaitLeader(ctx, before); err != nil {
			return err
		}
		out, err = w.othersServed(ctx)
		return err
	})
	if err != nil || out.succeeded {
		return out, err
	}
	w.leading, w.standby = w.standby, w.leading
	return w.othersServed(ctx)
}

// dropPolicies removes bindings of Fairlead's admission policies.
func (w *testbed) dropPolicies(ctx context.Context, which func(name string) bool) error {
	var list admissionv1.ValidatingAdmissionPolicyBindingList
	if err := w.List(ctx, &list); err != nil {
		return err
	}
	for i := range list.Items {
		if which(list.Items[i].Name) {
			if err := w.Delete(ctx, &list.Items[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// applyRights applies deploy/rights again.
func (w *testbed) applyRights(ctx context.Context) error {
	return w.Kubectl(ctx, "apply", "--server-side", "--force-conflicts", "-k", filepath.Join(w.Source, "deploy/rights"))
}

// awaitPolicy waits until the API server enforces onlyController, or no longer does. It learns
// of a binding with a delay.
func (w *testbed) awaitPolicy(ctx context.Context, bound bool) error {
	probe := &v1alpha1.IPBlock{
		ObjectMeta: metav1.ObjectMeta{Name: "probe.4-0a630100"}, Spec: v1alpha1.IPBlockSpec{Domain: "probe", CIDR: "10.99.1.0/26"},
	}
	return await(ctx, "the policy "+onlyController, func(ctx context.Context) (string, error) {
		err := w.Create(ctx, probe.DeepCopy(), client.DryRunAll)
		if refused(err) != bound || err != nil && !refused(err) {
			return fmt.Sprintf("a block by hand: %v", err), nil
		}
		return "", nil
	})
}

func forbidden(why string) error {
	return apierrors.NewForbidden(v1alpha1.GroupVersion.WithResource("nodenetworks").GroupResource(), badNode, errors.New(why))
}
