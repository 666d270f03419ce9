package apply

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/internal/pod"
)

// programs are the programs of whereabouts that write without its Lease, by their names
// in a container's command.
var programs = []string{"ip-control-loop", "ip-reconciler", "node-slice-controller"}

// writes reports whether a container runs such a program, or an image of whereabouts,
// which may start one by itself.
func writes(spec *corev1.PodSpec) bool {
	return slices.ContainsFunc(spec.Containers, func(c corev1.Container) bool {
		command := strings.Join(slices.Concat(c.Command, c.Args), " ")
		return strings.Contains(c.Image, "whereabouts") ||
			slices.ContainsFunc(programs, func(program string) bool { return strings.Contains(command, program) })
	})
}

// Writers returns the workloads that write whereabouts' objects without its Lease, each
// with the command that stops it. While such a workload runs no migration is safe: it
// frees addresses that are being imported.
func Writers(ctx context.Context, api client.Reader, pods []corev1.Pod) ([]string, error) {
	var (
		deployments appsv1.DeploymentList
		daemonSets  appsv1.DaemonSetList
		cronJobs    batchv1.CronJobList
		out         []string
	)
	for _, list := range []client.ObjectList{&deployments, &daemonSets, &cronJobs} {
		if err := api.List(ctx, list); err != nil {
			return nil, fmt.Errorf("list workloads that may run whereabouts: %w", err)
		}
	}
	note := func(what string, o client.Object, how string, args ...any) {
		out = append(out, fmt.Sprintf("%s %s/%s: kubectl -n %s ", what, o.GetNamespace(), o.GetName(), o.GetNamespace())+fmt.Sprintf(how, args...))
	}
	for i := range deployments.Items {
		d := &deployments.Items[i]
		if writes(&d.Spec.Template.Spec) && ptr.Deref(d.Spec.Replicas, 1) > 0 {
			note("Deployment", d, "scale deployment %s --replicas=0", d.Name)
		}
	}
	for i := range daemonSets.Items {
		d := &daemonSets.Items[i]
		if writes(&d.Spec.Template.Spec) && d.Spec.Template.Spec.NodeSelector[parked] == "" {
			note("DaemonSet", d, `patch daemonset %s -p '{"spec":{"template":{"spec":{"nodeSelector":{"%s":"nowhere"}}}}}'`, d.Name, parked)
		}
	}
	for i := range cronJobs.Items {
		j := &cronJobs.Items[i]
		if writes(&j.Spec.JobTemplate.Spec.Template.Spec) && !ptr.Deref(j.Spec.Suspend, false) {
			note("CronJob", j, `patch cronjob %s -p '{"spec":{"suspend":true}}'`, j.Name)
		}
	}
	for i := range pods {
		if p := &pods[i]; writes(&p.Spec) && !pod.Finished(p) {
			note("pod", p, "wait --for=delete pod/%s", p.Name)
		}
	}
	return out, nil
}

// parked is a label that no node has. As a node selector it removes a DaemonSet's pods,
// and leaves the files that they installed on the nodes.
const parked = "fairlead.dev/whereabouts"
