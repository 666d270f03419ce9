package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/kubeclient"
)

const (
	// An outage of the control plane takes from leastOutage to maxOutage.
	leastOutage = 5 * time.Second
	maxOutage   = 30 * time.Second
)

// controlFaults are the faults of the controllers, the control plane and its objects.
func (s *soaking) controlFaults() []fault {
	all := []fault{
		{"SIGKILL of the leader", func(ctx context.Context, random *rand.Rand) (look, error) {
			return s.killController(ctx, random, true)
		}},
		{"SIGKILL of the standby", func(ctx context.Context, random *rand.Rand) (look, error) {
			return s.killController(ctx, random, false)
		}},
		{"SIGSTOP of the leader, beyond its lease", s.freezeLeader},
		{"SIGKILL of API server and etcd", s.outage},
		{"SIGSTOP of API server and etcd", func(ctx context.Context, random *rand.Rand) (look, error) {
			if err := s.Plane.Signal(syscall.SIGSTOP); err != nil {
				return nil, err
			}
			away(ctx, random)
			return s.controlled, s.Plane.Signal(syscall.SIGCONT)
		}},
		{"finalizer of a PodAttachment removed", s.finalizerRemoved},
		{"status of a PodAttachment emptied", s.statusEmptied},
		{"NodeNetwork deleted", s.nodeNetworkDeleted},
	}
	if s.Clocked {
		all = append(all, fault{"jump of the wall clock of a controller", func(_ context.Context, random *rand.Rand) (look, error) {
			return s.controlled, s.controllerWall(random.IntN(len(s.controllers))).jump(random, maxControllerAhead) // as that of a node
		}})
	}
	return all
}

// away waits for the time of an outage.
func away(ctx context.Context, random *rand.Rand) {
	select {
	case <-ctx.Done():
	case <-time.After(leastOutage):
	}
	pause(ctx, random, maxOutage-leastOutage)
}

// leads returns the controllers that lead, and those that do not answer. gone is a controller
// that is not asked; -1 for none.
func (s *soaking) leads(ctx context.Context, gone int) (leaders []int, silent []int) {
	for i := range s.controllers {
		if i == gone {
			continue
		}
		leads, err := metric(ctx, s.Net.Switch, controllerPort+i, "leader_election_master_status", `name="fairlead-controller"`)
		switch {
		case err != nil:
			silent = append(silent, i)
		case leads == 1:
			leaders = append(leaders, i)
		}
	}
	return leaders, silent
}

// leader waits until a controller leads, and returns it. gone is a controller that does not
// run; -1 for none.
func (s *soaking) leader(ctx context.Context, gone int) (leader int, err error) {
	err = s.becomes(ctx, recoverWithin, func(ctx context.Context) (string, error) {
		leaders, silent := s.leads(ctx, gone)
		if len(leaders) == 0 {
			return fmt.Sprintf("no controller leads, controllers %v do not answer", silent), nil
		}
		leader = leaders[0]
		return "", nil
	})
	if err != nil {
		return 0, fmt.Errorf("waiting for a leader: %w", err)
	}
	return leader, nil
}

// controlled looks whether one of the controllers leads, both are ready, and so are the
// daemons.
func (s *soaking) controlled(ctx context.Context) (string, error) {
	if leaders, silent := s.leads(ctx, -1); len(leaders) != 1 || len(silent) > 0 {
		return fmt.Sprintf("controllers %v lead, controllers %v do not answer", leaders, silent), nil
	}
	for i := range s.controllers {
		if _, err := get(ctx, s.Net.Switch.Namespace, fmt.Sprintf("http://127.0.0.1:%d/readyz", controllerPort+i)); err != nil {
			return "", fmt.Errorf("controller %d: %w", i, err)
		}
	}
	return "", nil
}

// killController kills the leader or the standby and starts it again: a killed leader when
// the other one leads.
func (s *soaking) killController(ctx context.Context, random *rand.Rand, leading bool) (look, error) {
	victim, err := s.leader(ctx, -1)
	if err != nil {
		return nil, err
	}
	if leading {
		s.scrapeControllers(ctx)
		s.controllers[victim].Kill()
		if _, err := s.leader(ctx, victim); err != nil {
			return nil, err
		}
		return s.controlled, s.startController(victim)
	}
	victim = 1 - victim
	s.scrapeControllers(ctx)
	s.controllers[victim].Kill()
	pause(ctx, random, maxAway)
	return s.controlled, s.startController(victim)
}

// freezeLeader stops the leader until the other controller leads, and a while longer. It
// must not end, and not lead on.
func (s *soaking) freezeLeader(ctx context.Context, random *rand.Rand) (look, error) {
	leader, err := s.leader(ctx, -1)
	if err != nil {
		return nil, err
	}
	frozen := s.controllers[leader]
	if err := frozen.Signal(syscall.SIGSTOP); err != nil {
		return nil, err
	}
	if _, err := s.leader(ctx, leader); err != nil {
		return nil, err
	}
	pause(ctx, random, maxAway)
	return s.controlled, frozen.Signal(syscall.SIGCONT)
}

// outage kills the control plane and starts it again later, with the data that etcd had.
// Its watch caches are new: watches of before get the answer 410.
func (s *soaking) outage(ctx context.Context, random *rand.Rand) (look, error) {
	s.Plane.Kill()
	away(ctx, random)
	k, err := s.Programs.StartKubernetes(ctx, s.Net.Switch.Do, filepath.Join(s.programs(), "kubelab"),
		"--dir", s.Kubelab(), "--node-lifecycle", "--resume")
	if err != nil {
		return nil, err
	}
	s.Plane = k.Process
	return s.controlled, nil
}

// attachmentOf waits for a PodAttachment of a pod that runs, and returns it.
func (s *soaking) attachmentOf(ctx context.Context, random *rand.Rand) (*v1alpha1.PodAttachment, error) {
	var chosen *v1alpha1.PodAttachment
	err := s.becomes(ctx, recoverWithin, func(ctx context.Context) (string, error) {
		list := &v1alpha1.PodAttachmentList{}
		if err := s.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return "", err
		}
		attached := slices.DeleteFunc(list.Items, func(o v1alpha1.PodAttachment) bool {
			return o.DeletionTimestamp != nil || o.Status.Sandbox == nil || o.Status.Sandbox.State != v1alpha1.SandboxAttached
		})
		if len(attached) == 0 {
			return "no pod is attached", nil
		}
		chosen = &attached[random.IntN(len(attached))]
		return "", nil
	})
	return chosen, err
}

// finalizerRemoved deletes a pod and removes the finalizer of its PodAttachment, so that no
// release takes place. Garbage collection has to find the addresses.
func (s *soaking) finalizerRemoved(ctx context.Context, random *rand.Rand) (look, error) {
	pa, err := s.attachmentOf(ctx, random)
	if err != nil {
		return nil, err
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pa.Namespace, Name: pa.Spec.PodName}}
	strip := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	controller, err := kubeclient.New(cluster.AsController(s.REST)) // a policy refuses it to others
	if err != nil {
		return nil, err
	}
	for _, request := range []func(ctx context.Context) error{
		func(ctx context.Context) error {
			return s.Delete(ctx, pod, client.Preconditions{UID: &pa.Spec.PodUID})
		},
		func(ctx context.Context) error { return controller.Patch(ctx, pa, strip) },
	} {
		err := s.try(ctx, request)
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) { // another fault or worker was faster
			return nil, err
		}
	}
	return func(ctx context.Context) (string, error) {
		if why, err := s.podGone(ctx, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pa.Namespace, Name: pa.Spec.PodName, UID: pa.Spec.PodUID}}); why != "" || err != nil {
			return why, err
		}
		slots, err := s.slots(ctx)
		for _, slot := range slots {
			if slot.State == ipam.Taken && slot.Holder.PodUID == string(pa.Spec.PodUID) {
				return fmt.Sprintf("%v is still taken for pod %s", slot.Addr, pa.Spec.PodName), err
			}
		}
		return "", err
	}, nil
}

// podGone looks whether a pod has ended, whatever has its name now. It deletes the pod.
func (s *soaking) podGone(ctx context.Context, pod corev1.Pod) (string, error) {
	now := &corev1.Pod{}
	err := s.Get(ctx, client.ObjectKeyFromObject(&pod), now)
	if apierrors.IsNotFound(err) || err == nil && now.UID != pod.UID {
		return "", nil
	}
	if err == nil && now.DeletionTimestamp == nil {
		err = s.Delete(ctx, now, client.Preconditions{UID: &pod.UID})
	}
	return "pod " + pod.Name + " is still there", err
}

// statusEmptied removes the status of a running pod's PodAttachment. The node has to write
// it again.
func (s *soaking) statusEmptied(ctx context.Context, random *rand.Rand) (look, error) {
	pa, err := s.attachmentOf(ctx, random)
	if err != nil {
		return nil, err
	}
	empty := client.RawPatch(types.MergePatchType, []byte(`{"status":{"sandbox":null,"conditions":null}}`))
	err = s.try(ctx, func(ctx context.Context) error { return s.Status().Patch(ctx, pa.DeepCopy(), empty) })
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	return func(ctx context.Context) (string, error) {
		now := &v1alpha1.PodAttachment{}
		err := s.Get(ctx, client.ObjectKeyFromObject(pa), now)
		if apierrors.IsNotFound(err) || now.UID != pa.UID && err == nil {
			return "", nil // its pod has ended meanwhile
		}
		if now.Status.Sandbox == nil || len(now.Status.Conditions) == 0 {
			return "PodAttachment " + pa.Name + " has no status", err
		}
		return "", err
	}, nil
}

// nodeNetworkDeleted deletes the NodeNetwork of a node, and with it the routes of all nodes
// to its pods. It has to come back with the blocks and the node's status.
func (s *soaking) nodeNetworkDeleted(ctx context.Context, random *rand.Rand) (look, error) {
	n := s.nodes[random.IntN(len(s.nodes))]
	before := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: n.name}}
	err := s.try(ctx, func(ctx context.Context) error { return s.Get(ctx, client.ObjectKeyFromObject(before), before) })
	if err != nil {
		return nil, err
	}
	err = s.try(ctx, func(ctx context.Context) error { return s.Delete(ctx, before.DeepCopy()) })
	if err != nil && !apierrors.IsNotFound(err) { // a reply that was lost
		return nil, err
	}
	return func(ctx context.Context) (string, error) {
		now := &v1alpha1.NodeNetwork{}
		err := s.Get(ctx, client.ObjectKeyFromObject(before), now)
		switch {
		case err != nil:
			return "", err
		case now.UID == before.UID:
			return "NodeNetwork " + n.name + " is still the old one", nil
		case len(before.Spec.Blocks) > 0 && len(now.Spec.Blocks) == 0 || len(now.Status.Conditions) == 0:
			return "NodeNetwork " + n.name + " has no blocks or no status", nil
		}
		return "", nil
	}, nil
}
