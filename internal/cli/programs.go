package cli

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/cli/output"
)

// programView is one program as the cluster runs it.
type programView struct {
	Name string `json:"name"` // of the object, in the namespace of the Lease
	Kind string `json:"kind"` // Deployment or DaemonSet
	// Ready pods out of the Desired.
	Ready   int32 `json:"ready"`
	Desired int32 `json:"desired"`
	// Version is the label app.kubernetes.io/version, otherwise the image's tag.
	Version string `json:"version,omitempty"`
	// NotReadySince is the time since which a pod of the program has not been ready.
	NotReadySince *time.Time `json:"notReadySince,omitempty"`
}

func buildPrograms(in kube.Installation) []programView {
	out := []programView{}
	for i := range in.Controllers {
		d := &in.Controllers[i]
		v := programView{Name: d.Name, Kind: "Deployment", Ready: d.Status.ReadyReplicas, Desired: 1}
		if d.Spec.Replicas != nil {
			v.Desired = *d.Spec.Replicas
		}
		v.Version, v.NotReadySince = versionOf(d.Labels, d.Spec.Template), notReady(in, kube.ControllerName)
		out = append(out, v)
	}
	for i := range in.Daemons {
		d := &in.Daemons[i]
		v := programView{Name: d.Name, Kind: "DaemonSet", Ready: d.Status.NumberReady, Desired: d.Status.DesiredNumberScheduled}
		v.Version, v.NotReadySince = versionOf(d.Labels, d.Spec.Template), notReady(in, kube.DaemonName)
		out = append(out, v)
	}
	return out
}

// versionOf returns the version of a program; empty if neither label nor image has it.
func versionOf(labels map[string]string, template corev1.PodTemplateSpec) string {
	if v := cmp.Or(labels[kube.LabelVersion], template.Labels[kube.LabelVersion]); v != "" || len(template.Spec.Containers) == 0 {
		return v
	}
	image, _, _ := strings.Cut(template.Spec.Containers[0].Image, "@")
	_, tag, _ := strings.Cut(image[strings.LastIndex(image, "/")+1:], ":")
	return tag
}

// notReady returns the time since which a pod of the program has not been ready; nil if
// all are ready.
func notReady(in kube.Installation, program string) *time.Time {
	var longest *time.Time
	for i := range in.Pods {
		p := &in.Pods[i]
		if p.Labels[kube.LabelProgram] != program {
			continue
		}
		if ready, since := readiness(p); !ready && (longest == nil || since.Before(*longest)) {
			longest = output.Timestamp(since)
		}
	}
	return longest
}

// readiness returns whether a pod is ready, and since when.
func readiness(p *corev1.Pod) (ready bool, since time.Time) {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue, c.LastTransitionTime.Time
		}
	}
	return false, p.CreationTimestamp.Time
}

// Reasons why the last report of a node's daemon is outdated.
const (
	reasonNoDaemon       = "NoDaemon"       // no pod of the DaemonSet is on the node
	reasonDaemonNotReady = "DaemonNotReady" // there is a pod, and it is not ready
)

// checkDaemon marks a node as not ready if its daemon does not run: the daemon's last
// report is then outdated. A node that its daemon reported as not ready keeps that
// reason. Without a DaemonSet the state of daemons is unknown, and v stays as it is.
func checkDaemon(in kube.Installation, v *nodeView) {
	if len(in.Daemons) == 0 || !v.Ready && v.Reason != reasonSilent {
		return
	}
	var (
		worst *corev1.Pod
		since time.Time
	)
	for i := range in.Pods {
		p := &in.Pods[i]
		if p.Labels[kube.LabelProgram] != kube.DaemonName || p.Spec.NodeName != v.Name {
			continue
		}
		ready, unready := readiness(p)
		if ready {
			return
		}
		worst, since = p, unready
	}
	v.Ready = false
	if worst == nil {
		v.Reason = reasonNoDaemon
		v.Message = fmt.Sprintf("no pod of DaemonSet %s/%s is on it", in.Daemons[0].Namespace, in.Daemons[0].Name)
		return
	}
	v.Reason, v.NotReadySince = reasonDaemonNotReady, output.Timestamp(since)
	v.Message = fmt.Sprintf("its daemon, pod %s/%s, is not ready", worst.Namespace, worst.Name)
	for _, c := range worst.Status.ContainerStatuses {
		if c.State.Waiting != nil && c.State.Waiting.Reason != "" {
			v.Message += ": " + c.State.Waiting.Reason
		}
	}
}

func programsAttention(programs []programView, now time.Time) []string {
	var out []string
	for _, p := range programs {
		// nodesAttention reports missing daemons, by node.
		if p.Kind == "Deployment" && p.Ready < p.Desired && (p.NotReadySince == nil || overdue(p.NotReadySince, now)) {
			out = append(out, fmt.Sprintf("%d of %d pods of Deployment %s ready", p.Ready, p.Desired, p.Name))
		}
	}
	return out
}

func programsText(programs []programView) string {
	rows := [][]string{{"NAME", "KIND", "READY", "VERSION"}}
	for _, p := range programs {
		rows = append(rows, []string{p.Name, p.Kind, fmt.Sprintf("%d/%d", p.Ready, p.Desired), p.Version})
	}
	return output.Table(rows)
}
