package apply

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// programs are those of whereabouts that write without its Lease, by their
// names in a container's command.
var programs = []string{"ip-control-loop", "ip-reconciler", "node-slice-controller"}

// writes says whether a container runs one of them, or an image of whereabouts,
// which may start one by itself.
func writes(spec *corev1.PodSpec) bool {
	return slices.ContainsFunc(spec.Containers, func(c corev1.Container) bool {
		command := strings.Join(slices.Concat(c.Command, c.Args), " ")
		return strings.Contains(c.Image, "whereabouts") ||
			slices.ContainsFunc(programs, func(program string) bool { return strings.Contains(command, program) })
	})
}

// Writers returns what runs in the cluster that writes whereabouts' objects
// without its Lease, each with the command that stops it. While there is one no
// migration is safe: it frees what is being imported.
func Writers(ctx context.Context, api client.Reader, pods []corev1.Pod) ([]string, error) {
	var (
		deployments appsv1.DeploymentList
		daemonSets  appsv1.DaemonSetList
		cronJobs    batchv1.CronJobList
		out         []string
	)
	for _, list := range []client.ObjectList{&deployments, &daemonSets, &cronJobs} {
		if err := api.List(ctx, list); err != nil {
			return nil, fmt.Errorf("list what may run whereabouts: %w", err)
		}
	}
	for _, d := range deployments.Items {
		if writes(&d.Spec.Template.Spec) && (d.Spec.Replicas == nil || *d.Spec.Replicas > 0) {
			out = append(out, fmt.Sprintf("Deployment %s/%s: kubectl -n %s scale deployment %s --replicas=0", d.Namespace, d.Name, d.Namespace, d.Name))
		}
	}
	for _, d := range daemonSets.Items {
		if writes(&d.Spec.Template.Spec) && d.Spec.Template.Spec.NodeSelector[parked] == "" {
			out = append(out, fmt.Sprintf(`DaemonSet %s/%s: kubectl -n %s patch daemonset %s -p '{"spec":{"template":{"spec":{"nodeSelector":{"%s":"nowhere"}}}}}'`,
				d.Namespace, d.Name, d.Namespace, d.Name, parked))
		}
	}
	for _, j := range cronJobs.Items {
		if writes(&j.Spec.JobTemplate.Spec.Template.Spec) && (j.Spec.Suspend == nil || !*j.Spec.Suspend) {
			out = append(out, fmt.Sprintf(`CronJob %s/%s: kubectl -n %s patch cronjob %s -p '{"spec":{"suspend":true}}'`, j.Namespace, j.Name, j.Namespace, j.Name))
		}
	}
	for i := range pods {
		p := &pods[i]
		if writes(&p.Spec) && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			out = append(out, fmt.Sprintf("pod %s/%s: wait until it is gone", p.Namespace, p.Name))
		}
	}
	return out, nil
}

// parked is a label that no node has: it keeps a DaemonSet's pods away, and
// leaves what they installed on the nodes.
const parked = "fairlead.dev/whereabouts"
