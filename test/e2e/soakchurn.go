package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
)

const (
	// The objects of the churn. Their names are used again and again.
	churnSet   = "db"
	churnJob   = "batch"
	slotPrefix = "slot-"
	// slotCount is how many single pods exist at a time.
	slotCount = 6
	// mostReplicas bounds the Deployment, mostOrdinals the StatefulSet.
	mostReplicas = 8
	mostOrdinals = 3
	// maxWork is the longest pause between two changes of one object; patience is how long
	// a single pod may take to be ready before it is deleted anyway.
	maxWork  = 5 * time.Second
	patience = 25 * time.Second
	// betweenDrains is the shortest time between two drains of a node.
	betweenDrains = 15 * time.Second
)

// worker changes objects until its context ends.
type worker = func(ctx context.Context, random *rand.Rand) error

func (s *soaking) workers() []worker {
	all := []worker{s.scaleDeployment, s.scaleSet, s.runJobs, s.drainNodes}
	for i := range slotCount {
		all = append(all, func(ctx context.Context, random *rand.Rand) error { return s.fillSlot(ctx, random, i) })
	}
	return all
}

// refusals are the reasons of answers that the same request would get again. Others come from
// an API server that has just started: it forbids a lot until it has read the rights.
var refusals = []metav1.StatusReason{
	metav1.StatusReasonNotFound, metav1.StatusReasonAlreadyExists, metav1.StatusReasonConflict,
	metav1.StatusReasonInvalid, metav1.StatusReasonBadRequest,
}

// try makes a request until it succeeds, the API refuses it, or ctx ends, which is no
// error: the API server may be away.
func (s *soaking) try(ctx context.Context, request func(ctx context.Context) error) error {
	var refused error
	err := s.becomes(ctx, recoverWithin, func(ctx context.Context) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, tryTimeout)
		defer cancel()
		err := request(ctx)
		if slices.Contains(refusals, apierrors.ReasonForError(err)) {
			refused = err
			return "", nil
		}
		return "", err
	})
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the time is over
	}
	if err != nil {
		return err
	}
	return refused
}

// ensure creates an object unless it exists.
func (s *soaking) ensure(ctx context.Context, object client.Object) error {
	return client.IgnoreAlreadyExists(s.try(ctx, func(ctx context.Context) error { return s.Create(ctx, object) }))
}

// delete deletes an object and waits until it is gone, or ctx ends.
func (s *soaking) delete(ctx context.Context, object client.Object) error {
	err := s.try(ctx, func(ctx context.Context) error {
		return client.IgnoreNotFound(s.Delete(ctx, object, client.PropagationPolicy(metav1.DeletePropagationBackground)))
	})
	if err != nil || ctx.Err() != nil {
		return err
	}
	err = s.until(ctx, recoverWithin, func(ctx context.Context) (string, error) {
		err := s.Get(ctx, client.ObjectKeyFromObject(object), object)
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "it is still there", err
	})
	if err != nil {
		return fmt.Errorf("delete %s: %w", object.GetName(), err)
	}
	return nil
}

// until is becomes, except that the end of ctx is no error.
func (s *soaking) until(ctx context.Context, within time.Duration, well look) error {
	if err := s.becomes(ctx, within, well); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// replicas writes the number of replicas of a workload.
func (s *soaking) replicas(ctx context.Context, object client.Object, n int) error {
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n))
	return s.try(ctx, func(ctx context.Context) error { return s.Patch(ctx, object, patch) })
}

// scaleDeployment scales a Deployment up and down, and sometimes replaces all of its pods.
func (s *soaking) scaleDeployment(ctx context.Context, random *rand.Rand) error {
	d := newDeployment()
	d.Spec.Replicas = new(int32(2))
	d.Spec.Template.Spec.TopologySpreadConstraints[0].WhenUnsatisfiable = corev1.ScheduleAnyway
	if err := s.ensure(ctx, d); err != nil {
		return err
	}
	for ctx.Err() == nil {
		pause(ctx, random, 2*maxWork)
		err := s.replicas(ctx, d, 2+random.IntN(mostReplicas-1))
		if err == nil && random.IntN(5) == 0 {
			err = s.try(ctx, s.restart)
		}
		if err != nil && !apierrors.IsConflict(err) {
			return fmt.Errorf("scale the Deployment: %w", err)
		}
	}
	return nil
}

// scaleSet scales a StatefulSet up and down and deletes its pods. Each ordinal keeps its
// address on the network apps as long as it exists, and the first always exists.
func (s *soaking) scaleSet(ctx context.Context, random *rand.Rand) error {
	labels := map[string]string{appLabel: churnSet}
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: churnSet},
		Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(1)), PodManagementPolicy: appsv1.ParallelPodManagement,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec()},
		},
	}
	set.Spec.Template.Annotations = map[string]string{annotationNetworks: system + "/apps"}
	if err := s.ensure(ctx, set); err != nil {
		return err
	}
	for ctx.Err() == nil {
		pause(ctx, random, 2*maxWork)
		if err := s.replicas(ctx, set, 1+random.IntN(mostOrdinals)); err != nil {
			return fmt.Errorf("scale the StatefulSet: %w", err)
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: churnSet + "-0"}}
		pause(ctx, random, 2*maxWork)
		err := s.try(ctx, func(ctx context.Context) error { return client.IgnoreNotFound(s.Delete(ctx, pod)) })
		if err != nil {
			return err
		}
	}
	return nil
}

// runJobs runs a Job whose pods end, and makes it again under its name.
func (s *soaking) runJobs(ctx context.Context, random *rand.Rand) error {
	for ctx.Err() == nil {
		spec := podSpec()
		spec.RestartPolicy = corev1.RestartPolicyNever
		spec.Containers = []corev1.Container{{Name: "end", Image: serverImage, ImagePullPolicy: corev1.PullNever, Args: []string{"end"}}}
		job := &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: churnJob},
			Spec: batchv1.JobSpec{
				Completions: new(int32(2)), Parallelism: new(int32(2)), BackoffLimit: new(int32(100)),
				Template: corev1.PodTemplateSpec{Spec: spec},
			},
		}
		if err := s.ensure(ctx, job); err != nil {
			return err
		}
		pause(ctx, random, 4*maxWork)
		if err := s.delete(ctx, job); err != nil {
			return err
		}
	}
	return nil
}

// drainNodes drains one node after the other: no new pods, and its pods deleted.
func (s *soaking) drainNodes(ctx context.Context, random *rand.Rand) error {
	for i := random.IntN(len(s.nodes)); ; i++ {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(betweenDrains):
		}
		pause(ctx, random, 2*betweenDrains)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the time is over
		}
		n := s.nodes[i%len(s.nodes)]
		if err := s.drain(ctx, n); err != nil {
			return fmt.Errorf("drain %s: %w", n.name, err)
		}
		pause(ctx, random, 2*maxWork)
		// Also after the time is over: the node must serve pods again.
		if err := s.cordon(context.WithoutCancel(ctx), n, false); err != nil {
			return fmt.Errorf("uncordon %s: %w", n.name, err)
		}
	}
}

func (s *soaking) cordon(ctx context.Context, n *node, cordoned bool) error {
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"unschedulable":%v}}`, cordoned))
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name}}
	return s.try(ctx, func(ctx context.Context) error { return s.Patch(ctx, object, patch) })
}

func (s *soaking) drain(ctx context.Context, n *node) error {
	if err := s.cordon(ctx, n, true); err != nil {
		return err
	}
	var pods []corev1.Pod
	err := s.try(ctx, func(ctx context.Context) (err error) {
		pods, err = s.pods(ctx)
		return err
	})
	for _, pod := range pods {
		if err == nil && pod.Spec.NodeName == n.name {
			err = s.try(ctx, func(ctx context.Context) error { return client.IgnoreNotFound(s.Delete(ctx, &pod)) })
		}
	}
	return err
}

// fillSlot lets one pod of a name come and go: on the other node each time, with another
// kind of network. The last one stays for the rest.
func (s *soaking) fillSlot(ctx context.Context, random *rand.Rand, slot int) error {
	for round := random.IntN(100); ctx.Err() == nil; round++ {
		pod := s.slotPod(slot, round)
		// The pod before, of the last phase too, is gone first.
		if err := s.delete(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the time is over
		}
		if err := s.ensure(ctx, pod); err != nil {
			return fmt.Errorf("pod %s: %w", pod.Name, err)
		}
		if random.IntN(4) > 0 { // one of four is deleted at any step of its start
			waiting, stop := context.WithTimeout(ctx, patience)
			err := s.until(waiting, recoverWithin, func(ctx context.Context) (string, error) {
				err := client.IgnoreNotFound(s.Get(ctx, client.ObjectKeyFromObject(pod), pod))
				if err == nil && isReady(pod) {
					return "", nil
				}
				return "not ready", err
			})
			stop()
			if err != nil {
				return err
			}
		}
		pause(ctx, random, maxLife)
	}
	return nil
}

// slotPod returns the next pod of a slot: with a port of the node and a limited bandwidth,
// a plain one, or with 3 or 8 interfaces.
func (s *soaking) slotPod(slot, round int) *corev1.Pod {
	n := s.nodes[round%len(s.nodes)]
	name := fmt.Sprintf("%s%d", slotPrefix, slot)
	const host = 200 // the last byte of the first slot's own addresses
	switch round / len(s.nodes) % 4 {
	case 0:
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: podSpec()}
		pod.Spec.Containers[0].Ports[0].HostPort = 21000 + int32(slot) //nolint:gosec // few slots
		pod.Annotations = map[string]string{"kubernetes.io/ingress-bandwidth": "100M", "kubernetes.io/egress-bandwidth": "100M"}
		return pod
	case 1:
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: podSpec()}
	case 2:
		return s.attached(n, name, 3, host+slot, "shared").Pod
	default:
		return s.attached(n, name, 8, host+slot, "shared").Pod
	}
}

// newPodServed looks whether a pod that is created at the first look has a network: on the
// node of this name or, after a fault of the control plane, where the scheduler puts it.
// The pod is deleted then.
func (s *soaking) newPodServed(on string) look {
	var pod *corev1.Pod
	return func(ctx context.Context) (string, error) {
		if pod == nil {
			fresh := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "probe-"}, Spec: podSpec()}
			if on != controlPlane {
				fresh.Spec.NodeName = on // also if the node is drained
			}
			if err := s.Create(ctx, fresh); err != nil {
				return "", fmt.Errorf("create a pod: %w", err)
			}
			pod = fresh
		}
		err := s.Get(ctx, client.ObjectKeyFromObject(pod), pod)
		if apierrors.IsNotFound(err) || err == nil && pod.DeletionTimestamp != nil {
			pod = nil // a drain has deleted it
			return "the new pod was deleted", nil
		}
		list := &v1alpha1.PodAttachmentList{}
		if err := errors.Join(err, s.List(ctx, list, client.InNamespace(namespace))); err != nil {
			return "", err
		}
		for _, pa := range list.Items {
			if pa.Spec.PodUID == pod.UID && pa.Status.Sandbox != nil && pa.Status.Sandbox.State == v1alpha1.SandboxAttached {
				return "", client.IgnoreNotFound(s.Delete(ctx, pod))
			}
		}
		return fmt.Sprintf("pod %s on %s has no network", pod.Name, cmp.Or(pod.Spec.NodeName, "no node")), nil
	}
}
