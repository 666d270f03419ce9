package check

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
)

const (
	// LabelCheck marks the namespaces of a check. The value is the part in it.
	LabelCheck = "fairlead.dev/check"
	// namePrefix begins the names of these namespaces.
	namePrefix = "fairlead-check-"
	// labelPod has the name of a pod, for Services.
	labelPod = "fairlead.dev/check-pod"
	account  = "fairlead-check"
	policy   = "deny"

	serverPort = 20157
	hostPort   = 20158
	// maxAge ends the pods of a check whose program was killed, in seconds.
	maxAge = 15 * 60
	// user is no user of the image.
	user = 65532
)

// part is a namespace of a check, by what its pods may do.
type part string

const (
	// pods are as little privileged as any.
	partPods part = "pods"
	// partHost has the pods with a port of the node, its network or a capability, which Pod
	// Security allows in privileged namespaces only.
	partHost part = "host"
)

// settings are the choices of the user.
type settings struct {
	image    string
	networks []string // "namespace/name" of NetworkAttachmentDefinitions
	pools    []string
	egress   []string // "host:port"
	policy   bool
	limit    int // of nodes
}

func namespaceOf(p part, id string) *corev1.Namespace {
	name, level := namePrefix+id, "restricted"
	if p == partHost {
		name, level = name+"-host", "privileged"
	}
	labels := map[string]string{LabelCheck: string(p)}
	for _, mode := range []string{"enforce", "audit", "warn"} {
		labels["pod-security.kubernetes.io/"+mode] = level
	}
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

// accountIn returns the account of the pods, which has no right and no token.
func accountIn(namespace string) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: account}, AutomountServiceAccountToken: new(false)}
}

// role is the purpose of a pod.
type role string

const (
	roleServer   role = "server"    // answers and asks
	roleHostPort role = "host-port" // answers, also at a port of its node
	roleNode     role = "node"      // asks, on the network of its node
	roleSender   role = "sender"    // sends with addresses of others
)

// podOn returns the pod of a role for the node with a number.
func podOn(r role, number int, node, namespace string, s settings) *corev1.Pod {
	name := string(r) + "-" + strconv.Itoa(number)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{labelPod: name}, Annotations: map[string]string{}},
		Spec: corev1.PodSpec{
			// A check is for nodes that take no other pods, too.
			NodeName:                      node,
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			ServiceAccountName:            account,
			AutomountServiceAccountToken:  new(false),
			EnableServiceLinks:            new(false),
			RestartPolicy:                 corev1.RestartPolicyAlways,
			ActiveDeadlineSeconds:         new(int64(maxAge)),
			TerminationGracePeriodSeconds: new(int64(1)),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), RunAsUser: new(int64(user)), RunAsGroup: new(int64(user)),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "probe", Image: s.image, ImagePullPolicy: corev1.PullIfNotPresent,
				Command: []string{"fairlead", "probe", "serve", "--port", strconv.Itoa(serverPort)},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
	switch r {
	case roleServer:
		choose(p, s)
	case roleHostPort:
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: serverPort, HostPort: hostPort}}
	case roleNode:
		p.Spec.HostNetwork = true
		p.Spec.Containers[0].Command = []string{"fairlead", "probe", "hold"}
	case roleSender:
		choose(p, s)
		p.Spec.Containers[0].Command = []string{"fairlead", "probe", "hold"}
		// A capability that is added is in effect for the user 0 alone.
		p.Spec.SecurityContext.RunAsNonRoot, p.Spec.SecurityContext.RunAsUser = nil, new(int64(0))
		p.Spec.Containers[0].SecurityContext.Capabilities.Add = []corev1.Capability{"NET_RAW"}
	}
	return p
}

// choose asks for the networks and pools of the user.
func choose(p *corev1.Pod, s settings) {
	if len(s.networks) > 0 {
		p.Annotations[pod.AnnotationNetworks] = strings.Join(s.networks, ",")
	}
	if len(s.pools) > 0 {
		p.Annotations[v1alpha1.AnnotationPools] = strings.Join(s.pools, ",")
	}
}

// serviceOf returns the Service of a pod, with a port of all nodes.
func serviceOf(p *corev1.Pod) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, Selector: map[string]string{labelPod: p.Name},
			Ports:          []corev1.ServicePort{{Port: serverPort}},
			IPFamilyPolicy: new(corev1.IPFamilyPolicyPreferDualStack),
		},
	}
}

// denyAll returns the policy that denies all connections to the pods of a namespace.
func denyAll(namespace string) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: policy},
		Spec:       networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}},
	}
}

// networkNames returns the networks that were asked for as the annotation takes them, or
// the first that is not of the form namespace/name.
func networkNames(asked []string) (names []string, wrong string) {
	for _, n := range asked {
		parts := types.NamespacedName{}
		var ok bool
		if parts.Namespace, parts.Name, ok = strings.Cut(n, "/"); !ok || parts.Namespace == "" || parts.Name == "" || strings.ContainsAny(parts.Name, "/@,") {
			return nil, n
		}
		names = append(names, parts.String())
	}
	return slices.Compact(slices.Sorted(slices.Values(names))), ""
}
