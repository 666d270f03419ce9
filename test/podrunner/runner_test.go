package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"fairlead.dev/fairlead/test/podrunner/sandbox"
)

func TestLifeOfAPod(t *testing.T) {
	b := newBench(t)
	b.start(t)
	pod := newPod("web")
	pod.Annotations = map[string]string{"team": "a=b", ingressBandwidth: "10M"}
	pod.Spec.Containers[0].Ports = []corev1.ContainerPort{
		{ContainerPort: 80, HostPort: 8080, HostIP: "192.0.2.1"}, {ContainerPort: 81}, {ContainerPort: 53, HostPort: 5353, Protocol: corev1.ProtocolUDP},
	}
	pod.Spec.DNSPolicy = corev1.DNSNone
	five := "5"
	pod.Spec.DNSConfig = &corev1.PodDNSConfig{
		Nameservers: []string{"192.0.2.53"}, Searches: []string{"example.org"},
		Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: &five}, {Name: "rotate"}},
	}
	b.create(t, pod)
	eventually(t, "the pod runs", b.running(t, "web"))

	add := calls(t, b.dir)[0]
	if add.Verb != "ADD" || add.IfName != "eth0" || !add.LoopbackUp || add.Config.CNIVersion != "1.1.0" || add.Config.Name != "lab" {
		t.Errorf("the first call is %+v; want ADD of eth0, CNI 1.1.0, network lab, in a namespace with lo up", add)
	}
	if len(add.ContainerID) != 64 || strings.Trim(add.ContainerID, "0123456789abcdef") != "" {
		t.Errorf("container ID %q; want 64 hexadecimal digits", add.ContainerID)
	}
	args := strings.Split(add.Args, ";")
	slices.Sort(args)
	wantArgs := []string{
		"IgnoreUnknown=1", "K8S_POD_INFRA_CONTAINER_ID=" + add.ContainerID, "K8S_POD_NAME=web",
		"K8S_POD_NAMESPACE=default", "K8S_POD_UID=web-uid",
	}
	if diff := cmp.Diff(wantArgs, args); diff != "" {
		t.Errorf("CNI_ARGS (-want +got):\n%s", diff)
	}
	wantCapabilities := map[string]any{
		"portMappings": []any{
			map[string]any{"HostPort": 8080.0, "ContainerPort": 80.0, "Protocol": "tcp", "HostIP": "192.0.2.1"},
			map[string]any{"HostPort": 5353.0, "ContainerPort": 53.0, "Protocol": "udp", "HostIP": ""},
		},
		"bandwidth": map[string]any{"IngressRate": 1e7, "IngressBurst": 4294967295.0, "EgressRate": 0.0, "EgressBurst": 0.0},
		"dns": map[string]any{
			"Servers": []any{"192.0.2.53"}, "Searches": []any{"example.org"}, "Options": []any{"ndots:5", "rotate"},
		},
		"cgroupPath": "/kubepods/besteffort/podweb-uid",
		"io.kubernetes.cri.pod-annotations": map[string]any{
			"team": "a=b", ingressBandwidth: "10M", "kubernetes.io/config.source": "api",
		},
	}
	var capabilities map[string]any
	if err := json.Unmarshal(add.Config.RuntimeConfig, &capabilities); err != nil {
		t.Fatal(err)
	}
	seen := cmpopts.IgnoreMapEntries(func(key string, _ any) bool { return key == "kubernetes.io/config.seen" })
	if diff := cmp.Diff(wantCapabilities, capabilities, seen); diff != "" {
		t.Errorf("runtimeConfig (-want +got):\n%s", diff)
	}

	status := b.pod(t, "web").Status
	if diff := cmp.Diff([]corev1.PodIP{{IP: "10.244.0.5"}, {IP: "fd00:10:244::5"}}, status.PodIPs); diff != "" || status.PodIP != "10.244.0.5" {
		t.Errorf("podIP %q and podIPs (-want +got):\n%s", status.PodIP, diff)
	}
	for _, condition := range []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady, corev1.PodReadyToStartContainers} {
		if !slices.ContainsFunc(status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == condition && c.Status == corev1.ConditionTrue
		}) {
			t.Errorf("condition %s is not true: %v", condition, status.Conditions)
		}
	}
	if status.StartTime == nil || len(status.ContainerStatuses) != 1 || status.ContainerStatuses[0].State.Running == nil {
		t.Errorf("start time %v, containers %v; want a start time and one running container", status.StartTime, status.ContainerStatuses)
	}

	b.markDeleted(t, "web")
	eventually(t, "the pod is gone", b.gone(t, "web"))
	all := calls(t, b.dir)
	if diff := cmp.Diff([]string{"ADD", "DEL", "DEL-"}, verbs(all)); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	for _, del := range all[1:] {
		if del.ContainerID != add.ContainerID {
			t.Errorf("DEL of %s; want %s", del.ContainerID, add.ContainerID)
		}
		if string(del.Config.RuntimeConfig) != string(add.Config.RuntimeConfig) {
			t.Errorf("DEL has the capabilities %s; want those of ADD, %s", del.Config.RuntimeConfig, add.Config.RuntimeConfig)
		}
	}
	if len(all[1].Config.PrevResult) == 0 || !all[1].LoopbackUp {
		t.Error("the first DEL has no prevResult or no namespace; want both")
	}
	b.assertFinalDelete(t, "web-uid")
	b.assertNothingLeft(t)

	ops, err := sandbox.ReadOps(b.opts.stateDir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, op := range ops {
		got = append(got, op.Verb+" "+op.Pod+" "+string(op.UID))
		if op.MS <= 0 || op.Error != "" || op.Sandbox != add.ContainerID {
			t.Errorf("execution %+v; want a time, no error and sandbox %s", op, add.ContainerID)
		}
	}
	if diff := cmp.Diff([]string{"ADD default/web web-uid", "DEL default/web web-uid", "DEL default/web web-uid"}, got); diff != "" {
		t.Errorf("executions (-want +got):\n%s", diff)
	}
}

func (b *testRunner) assertFinalDelete(t *testing.T, uid types.UID) {
	t.Helper()
	for _, action := range b.client.Actions() {
		if deletion, ok := action.(clienttesting.DeleteActionImpl); ok && action.GetResource().Resource == "pods" {
			opts := deletion.DeleteOptions
			if opts.GracePeriodSeconds == nil || *opts.GracePeriodSeconds != 0 || opts.Preconditions == nil || *opts.Preconditions.UID != uid {
				t.Errorf("final deletion with %+v; want grace period 0 and UID %s", opts, uid)
			}
			return
		}
	}
	t.Error("the pod was not deleted for good")
}

func TestFailedAddIsUndoneAndTriedWithANewID(t *testing.T) {
	b := newBench(t)
	b.write(t, "fail-ADD", "xx")
	b.start(t)
	b.create(t, newPod("web"))
	eventually(t, "the pod runs", b.running(t, "web"))
	all := calls(t, b.dir)
	if diff := cmp.Diff([]string{"ADD", "DEL", "ADD", "DEL", "ADD"}, verbs(all)); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if a, b, c := all[0].ContainerID, all[2].ContainerID, all[4].ContainerID; a == b || b == c || a == c {
		t.Errorf("sandbox IDs %s, %s, %s; want three different ones", a, b, c)
	}
	if event := <-b.events.Events; !strings.HasPrefix(event, "Warning FailedCreatePodSandBox Failed to create pod sandbox: failed to setup network") || !strings.Contains(event, "told to fail") {
		t.Errorf("event %q; want FailedCreatePodSandBox with the plugin's words", event)
	}
}

func TestFailedUndoIsTornDownLater(t *testing.T) {
	b := newBench(t)
	b.write(t, "fail-ADD", "x")
	b.write(t, "fail-DEL", "x")
	b.start(t)
	b.create(t, newPod("web"))
	eventually(t, "the pod runs", b.running(t, "web"))
	if diff := cmp.Diff([]string{"ADD", "DEL", "DEL", "DEL-", "ADD"}, verbs(calls(t, b.dir))); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func TestFailedDelIsTriedAgain(t *testing.T) {
	b := newBench(t)
	b.start(t)
	b.create(t, newPod("web"))
	eventually(t, "the pod runs", b.running(t, "web"))
	b.write(t, "fail-DEL", "xx")
	b.markDeleted(t, "web")
	eventually(t, "the pod is gone", b.gone(t, "web"))
	if diff := cmp.Diff([]string{"ADD", "DEL", "DEL", "DEL", "DEL-"}, verbs(calls(t, b.dir))); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	b.assertNothingLeft(t)
}

func TestResultWithoutAddressesFails(t *testing.T) {
	b := newBench(t)
	b.write(t, "result", `{"cniVersion":"1.1.0","interfaces":[{"name":"net1"}],"ips":[{"address":"192.0.2.9/24","interface":0}]}`)
	b.start(t)
	b.create(t, newPod("web"))
	if event := <-b.events.Events; !strings.Contains(event, "no address of eth0") {
		t.Errorf("event %q; want one that misses an address of eth0", event)
	}
}

func TestDeletionEndsARunningAdd(t *testing.T) {
	b := newBench(t)
	b.write(t, "block-ADD", "")
	b.start(t)
	b.create(t, newPod("web"))
	eventually(t, "ADD runs", func() bool { return len(calls(t, b.dir)) == 1 })
	b.markDeleted(t, "web")
	eventually(t, "the pod is gone", b.gone(t, "web"))
	if diff := cmp.Diff([]string{"ADD", "DEL"}, verbs(calls(t, b.dir))); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	b.assertNothingLeft(t)
}

func TestRestart(t *testing.T) {
	b := newBench(t)
	b.start(t)
	b.create(t, newPod("stays"))
	b.create(t, newPod("goes"))
	eventually(t, "both run", func() bool { return b.running(t, "stays")() && b.running(t, "goes")() })
	b.halt(t)
	if err := b.client.CoreV1().Pods("default").Delete(t.Context(), "goes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	before := len(calls(t, b.dir))
	b.start(t)
	eventually(t, "a pod that was deleted while the runner was down gets its DELs", func() bool {
		return cmp.Diff([]string{"DEL", "DEL-"}, verbs(calls(t, b.dir)[before:])) == ""
	})
	if !strings.Contains(calls(t, b.dir)[before].Args, "K8S_POD_NAME=goes") {
		t.Errorf("DEL of %s; want the pod that is gone", calls(t, b.dir)[before].Args)
	}
	eventually(t, "its record goes", func() bool {
		records, err := sandbox.Read(b.opts.stateDir)
		return err == nil && len(records) == 1 && records[0].Pod == "stays"
	})
}

func TestRestartDuringAdd(t *testing.T) {
	b := newBench(t)
	b.write(t, "block-ADD", "")
	b.start(t)
	b.create(t, newPod("web"))
	eventually(t, "ADD runs", func() bool { return len(calls(t, b.dir)) == 1 })
	b.halt(t)
	if err := os.Remove(filepath.Join(b.dir, "block-ADD")); err != nil {
		t.Fatal(err)
	}
	b.start(t)
	eventually(t, "the pod runs", b.running(t, "web"))
	all := calls(t, b.dir)
	if diff := cmp.Diff([]string{"ADD", "DEL", "DEL-", "ADD"}, verbs(all)); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if all[0].ContainerID == all[3].ContainerID {
		t.Error("the sandbox ID was used again; want a new one")
	}
}

func TestLostNamespaceMakesANewSandbox(t *testing.T) {
	b := newBench(t)
	b.start(t)
	b.create(t, newPod("web"))
	eventually(t, "the pod runs", b.running(t, "web"))
	b.halt(t)
	if err := removeNetns(calls(t, b.dir)[0].Netns); err != nil { // as a reboot does
		t.Fatal(err)
	}
	b.start(t)
	eventually(t, "a new sandbox", func() bool {
		return cmp.Diff([]string{"ADD", "DEL-", "DEL-", "ADD"}, verbs(calls(t, b.dir))) == ""
	})
}

func TestHostNetworkPodNeedsNoPlugin(t *testing.T) {
	b := newBench(t)
	if err := os.Remove(filepath.Join(b.opts.cniConfDir, "10-lab.conflist")); err != nil {
		t.Fatal(err)
	}
	b.start(t)
	pod := newPod("host")
	pod.Spec.HostNetwork = true
	b.create(t, pod)
	eventually(t, "the pod runs", b.running(t, "host"))
	if got := calls(t, b.dir); len(got) > 0 {
		t.Errorf("calls %v; want none", got)
	}
	status := b.pod(t, "host").Status
	if status.PodIP == "" || status.PodIP != status.HostIP {
		t.Errorf("podIP %q; want the node's, %q", status.PodIP, status.HostIP)
	}
}

func TestPodsWaitForTheNetwork(t *testing.T) {
	b := newBench(t)
	if err := os.Remove(filepath.Join(b.opts.cniConfDir, "10-lab.conflist")); err != nil {
		t.Fatal(err)
	}
	b.start(t)
	b.create(t, newPod("web"))
	readyIs := func(want corev1.ConditionStatus, word string) func() bool {
		return func() bool {
			node, err := b.client.CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{})
			return err == nil && slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeReady && c.Status == want && strings.Contains(c.Message, word)
			})
		}
	}
	eventually(t, "the node is not ready", readyIs(corev1.ConditionFalse, "cni plugin not initialized"))
	b.write(t, "fail-STATUS", "x")
	b.install(t)
	eventually(t, "the plugin's STATUS counts", readyIs(corev1.ConditionFalse, "told to fail"))
	eventually(t, "the node is ready", readyIs(corev1.ConditionTrue, ""))
	eventually(t, "the pod runs", b.running(t, "web"))
}

func TestFinishedPodGivesItsSandboxBack(t *testing.T) {
	b := newBench(t)
	b.start(t)
	b.create(t, newPod("job"))
	eventually(t, "the pod runs", b.running(t, "job"))
	pod := b.pod(t, "job")
	pod.Status.Phase = corev1.PodSucceeded
	if _, err := b.client.CoreV1().Pods("default").UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both DELs", func() bool {
		return cmp.Diff([]string{"ADD", "DEL", "DEL-"}, verbs(calls(t, b.dir))) == ""
	})
	if b.pod(t, "job") == nil {
		t.Error("the pod is gone; want it to stay until someone deletes it")
	}
}

func TestManyPodsAtOnce(t *testing.T) {
	b := newBench(t)
	b.start(t)
	const count = 40
	for i := range count {
		b.create(t, newPod(fmt.Sprintf("pod-%d", i)))
	}
	for i := range count {
		eventually(t, "the pod runs", b.running(t, fmt.Sprintf("pod-%d", i)))
	}
	for i := range count {
		b.markDeleted(t, fmt.Sprintf("pod-%d", i))
	}
	for i := range count {
		eventually(t, "the pod is gone", b.gone(t, fmt.Sprintf("pod-%d", i)))
	}
	if got := len(calls(t, b.dir)); got != 3*count {
		t.Errorf("%d calls; want %d", got, 3*count)
	}
	b.assertNothingLeft(t)
}
