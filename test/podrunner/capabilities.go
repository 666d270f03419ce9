package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// The forms in which containerd passes capability arguments: its structs have no JSON
// tags, so the keys are in CamelCase.
type (
	portMapping struct {
		HostPort      int32
		ContainerPort int32
		Protocol      string
		HostIP        string
	}
	bandwidth struct {
		IngressRate  uint64
		IngressBurst uint64
		EgressRate   uint64
		EgressBurst  uint64
	}
	dnsConfig struct {
		Servers  []string
		Searches []string
		Options  []string
	}
)

// Annotations that limit a pod's traffic, and the rates that kubelet accepts.
const (
	ingressBandwidth = "kubernetes.io/ingress-bandwidth"
	egressBandwidth  = "kubernetes.io/egress-bandwidth"
)

// capabilityArgs returns the arguments that kubelet and containerd derive from a pod. As
// in containerd, arguments that the plugin has no capability for are removed later.
func capabilityArgs(pod *corev1.Pod, node dnsConfig, now time.Time) (map[string]any, error) {
	annotations := map[string]string{
		// Kubelet marks the source of a pod, and since when it has the pod.
		"kubernetes.io/config.source": "api",
		"kubernetes.io/config.seen":   now.Format(time.RFC3339Nano),
	}
	maps.Copy(annotations, pod.Annotations)
	args := map[string]any{
		"io.kubernetes.cri.pod-annotations": annotations,
		"dns":                               podDNS(pod, node),
		"cgroupPath":                        cgroupParent(pod),
	}
	if ports := portMappings(pod); len(ports) > 0 {
		args["portMappings"] = ports
	}
	rates, err := podBandwidth(pod)
	if err != nil {
		return nil, err
	}
	if rates != nil {
		args["bandwidth"] = *rates
	}
	return args, nil
}

func portMappings(pod *corev1.Pod) []portMapping {
	containers := slices.Clone(pod.Spec.Containers)
	for _, container := range pod.Spec.InitContainers {
		if container.RestartPolicy != nil && *container.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			containers = append(containers, container)
		}
	}
	var out []portMapping
	for _, container := range containers {
		for _, port := range container.Ports {
			if port.HostPort <= 0 {
				continue
			}
			protocol := port.Protocol
			if protocol == "" {
				protocol = corev1.ProtocolTCP
			}
			out = append(out, portMapping{
				HostPort:      port.HostPort,
				ContainerPort: port.ContainerPort,
				Protocol:      strings.ToLower(string(protocol)),
				HostIP:        port.HostIP,
			})
		}
	}
	return out
}

// podBandwidth reads the annotations; nil if there are none. Containerd does not limit
// bursts, which it expresses by the largest 32-bit number.
func podBandwidth(pod *corev1.Pod) (*bandwidth, error) {
	ingress, err := rate(pod, ingressBandwidth)
	if err != nil {
		return nil, err
	}
	egress, err := rate(pod, egressBandwidth)
	if err != nil {
		return nil, err
	}
	if ingress == 0 && egress == 0 {
		return nil, nil
	}
	out := &bandwidth{IngressRate: ingress, EgressRate: egress}
	if ingress > 0 {
		out.IngressBurst = math.MaxUint32
	}
	if egress > 0 {
		out.EgressBurst = math.MaxUint32
	}
	return out, nil
}

// rate returns an annotation in bits per second, 0 if it is missing.
func rate(pod *corev1.Pod, annotation string) (uint64, error) {
	text, ok := pod.Annotations[annotation]
	if !ok {
		return 0, nil
	}
	quantity, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, fmt.Errorf("annotation %s: %q: %w", annotation, text, err)
	}
	if value := quantity.Value(); value < 1e3 || value > 1e15 {
		return 0, fmt.Errorf("annotation %s: %q: must be between 1k and 1P", annotation, text)
	}
	return uint64(quantity.Value()), nil
}

// podDNS returns the settings that kubelet derives from a pod's DNS policy if no cluster
// DNS is configured: the node's settings, then the pod's own.
func podDNS(pod *corev1.Pod, node dnsConfig) dnsConfig {
	out := dnsConfig{}
	if pod.Spec.DNSPolicy != corev1.DNSNone {
		out = dnsConfig{
			Servers:  slices.Clone(node.Servers),
			Searches: slices.Clone(node.Searches),
			Options:  slices.Clone(node.Options),
		}
	}
	if own := pod.Spec.DNSConfig; own != nil {
		out.Servers = append(out.Servers, own.Nameservers...)
		out.Searches = append(out.Searches, own.Searches...)
		for _, option := range own.Options {
			text := option.Name
			if option.Value != nil {
				text += ":" + *option.Value
			}
			out.Options = append(out.Options, text)
		}
	}
	return out
}

// parseResolvConf reads the settings of a node, as in resolv.conf(5).
func parseResolvConf(text string) dnsConfig {
	var out dnsConfig
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			out.Servers = append(out.Servers, fields[1])
		case "search":
			out.Searches = fields[1:] // the last one counts
		case "options":
			out.Options = append(out.Options, fields[1:]...)
		}
	}
	return out
}

// cgroupParent returns the control group of a pod's processes with the cgroupfs driver.
func cgroupParent(pod *corev1.Pod) string {
	class := strings.ToLower(string(pod.Status.QOSClass)) + "/"
	if pod.Status.QOSClass == corev1.PodQOSGuaranteed || pod.Status.QOSClass == "" {
		class = ""
	}
	return "/kubepods/" + class + "pod" + string(pod.UID)
}
