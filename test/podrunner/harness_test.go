package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"fairlead.dev/fairlead/test/podrunner/sandbox"
)

const conflist = `{
  "cniVersion": "1.0.0", "cniVersions": ["1.0.0", "1.1.0"], "name": "lab",
  "plugins": [{
    "type": "fake", "dir": %q,
    "capabilities": {"portMappings": true, "bandwidth": true, "dns": true, "cgroupPath": true, "io.kubernetes.cri.pod-annotations": true}
  }]
}`

const dualStackResult = `{
  "cniVersion": "1.1.0",
  "interfaces": [{"name": "fl123"}, {"name": "eth0", "sandbox": "x"}, {"name": "net1", "sandbox": "x"}],
  "ips": [
    {"address": "fd00:10:244::5/128", "interface": 1},
    {"address": "10.244.0.5/32", "interface": 1},
    {"address": "192.0.2.9/24", "interface": 2}
  ]
}`

// bench is a pod runner with a fake API server and a fake plugin.
type testRunner struct {
	dir     string // directory of the fake plugin
	opts    options
	client  *fake.Clientset
	events  *record.FakeRecorder
	stop    context.CancelFunc
	stopped chan error
}

func newBench(t *testing.T) *testRunner {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making network namespaces needs root")
	}
	root := t.TempDir()
	b := &testRunner{
		dir: filepath.Join(root, "plugin"),
		opts: options{
			node: "node-1", maxPods: 10, backoff: 10 * time.Millisecond,
			cniBinDir: filepath.Join(root, "bin"), cniConfDir: filepath.Join(root, "conf"),
			netnsDir: filepath.Join(root, "netns"), stateDir: filepath.Join(root, "state"),
		},
		client: fake.NewClientset(),
		events: record.NewFakeRecorder(100),
	}
	for _, dir := range []string{b.dir, b.opts.cniBinDir, b.opts.cniConfDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(pluginPath, filepath.Join(b.opts.cniBinDir, "fake")); err != nil {
		t.Fatal(err)
	}
	b.write(t, "result", dualStackResult)
	b.install(t)
	t.Cleanup(func() {
		b.halt(t)
		// A mount that a test leaves would outlive it.
		mounts, _ := filepath.Glob(filepath.Join(b.opts.netnsDir, "*"))
		for _, path := range mounts {
			if err := removeNetns(path); err != nil {
				t.Error(err)
			}
		}
	})
	return b
}

// install writes the network configuration as an installer does.
func (b *testRunner) install(t *testing.T) {
	t.Helper()
	path := filepath.Join(b.opts.cniConfDir, "10-lab.conflist")
	if err := os.WriteFile(path+".tmp", fmt.Appendf(nil, conflist, b.dir), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		t.Fatal(err)
	}
}

func (b *testRunner) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (b *testRunner) start(t *testing.T) {
	t.Helper()
	program, err := assemble(b.opts, b.client, b.events)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	b.stop, b.stopped = cancel, make(chan error, 1)
	go func() { b.stopped <- program.run(ctx) }()
}

func (b *testRunner) halt(t *testing.T) {
	t.Helper()
	if b.stop == nil {
		return
	}
	b.stop()
	if err := <-b.stopped; err != nil {
		t.Errorf("the pod runner failed: %v", err)
	}
	b.stop = nil
}

func newPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name + "-uid")},
		Spec:       corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{{Name: "main", Image: "none"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodPending, QOSClass: corev1.PodQOSBestEffort},
	}
}

func (b *testRunner) create(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if _, err := b.client.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// markDeleted does what the API server does with a graceful deletion.
func (b *testRunner) markDeleted(t *testing.T, name string) {
	t.Helper()
	pod := b.pod(t, name)
	now := metav1.Now()
	pod.DeletionTimestamp = &now
	if _, err := b.client.CoreV1().Pods("default").Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (b *testRunner) pod(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	pod, err := b.client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func (b *testRunner) running(t *testing.T, name string) func() bool {
	return func() bool { pod := b.pod(t, name); return pod != nil && pod.Status.Phase == corev1.PodRunning }
}

func (b *testRunner) gone(t *testing.T, name string) func() bool {
	return func() bool { return b.pod(t, name) == nil }
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 20*time.Second, true,
		func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func (b *testRunner) assertNothingLeft(t *testing.T) {
	t.Helper()
	records, err := sandbox.Read(b.opts.stateDir)
	if err != nil || len(records) > 0 {
		t.Errorf("records left: %v, %v", records, err)
	}
	if mounts, _ := filepath.Glob(filepath.Join(b.opts.netnsDir, "*")); len(mounts) > 0 {
		t.Errorf("network namespaces left: %v", mounts)
	}
	if cached, _ := filepath.Glob(filepath.Join(b.opts.stateDir, "cni", "results", "*")); len(cached) > 0 {
		t.Errorf("results left in libcni's cache: %v", cached)
	}
}

// verbs returns the calls in short form: the verb, and "-" if CNI_NETNS was empty.
func verbs(calls []call) []string {
	var out []string
	for _, c := range calls {
		verb := c.Verb
		if c.Netns == "" {
			verb += "-"
		}
		out = append(out, verb)
	}
	return out
}
