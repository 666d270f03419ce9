package answer

import (
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/node/ledger"
)

// ParseArgs returns the pod that CNI_ARGS, "key=value;key=value", names. The UID may be
// empty; errors: fault.ErrEnvironment if namespace or name are missing.
func ParseArgs(args string) (ledger.Pod, error) {
	var p ledger.Pod
	for pair := range strings.SplitSeq(args, ";") {
		key, value, _ := strings.Cut(pair, "=")
		switch key {
		case "K8S_POD_NAMESPACE":
			p.Namespace = value
		case "K8S_POD_NAME":
			p.Name = value
		case "K8S_POD_UID":
			p.UID = types.UID(value)
		}
	}
	var missing []string
	if p.Namespace == "" {
		missing = append(missing, "K8S_POD_NAMESPACE")
	}
	if p.Name == "" {
		missing = append(missing, "K8S_POD_NAME")
	}
	if len(missing) > 0 {
		return p, fault.Errorf(fault.ErrEnvironment, "CNI_ARGS: %q: lacks %s", args, strings.Join(missing, " and "))
	}
	return p, nil
}

// Args returns the CNI_ARGS of plugins that are executed for a pod. They are those of a
// runtime, whatever the runtime passed.
func Args(pa *v1alpha1.PodAttachment, containerID string) string {
	pod := pa.Pod()
	return strings.Join([]string{
		"IgnoreUnknown=1", "K8S_POD_NAMESPACE=" + pod.Namespace, "K8S_POD_NAME=" + pod.Name,
		"K8S_POD_INFRA_CONTAINER_ID=" + containerID, "K8S_POD_UID=" + string(pa.Spec.PodUID),
	}, ";")
}
