package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	watchtools "k8s.io/client-go/tools/watch"
)

// asKubelab makes the test binary run as kubelab, so that the tests need no other build.
const asKubelab = "KUBELAB_TEST_RUN"

func TestMain(m *testing.M) {
	if os.Getenv(asKubelab) != "" {
		main()
	}
	os.Exit(m.Run())
}

// lab is a running `kubelab up`.
type lab struct {
	cmd        *exec.Cmd
	kubeconfig string
	stdout     string // complete: up closes it when it is ready
	stderr     bytes.Buffer
	exited     chan error
}

func kubelab(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asKubelab+"=1")
	return cmd
}

// startLab runs `kubelab up` and returns when it is ready. It is killed at the end of the test if it still runs.
func startLab(t *testing.T, args ...string) *lab {
	t.Helper()
	l := &lab{cmd: kubelab(append([]string{"up"}, args...)...), exited: make(chan error, 1)}
	l.cmd.Stderr = &l.stderr
	stdout, err := l.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(bufio.NewReader(stdout))
	if err != nil {
		t.Fatal(err)
	}
	go func() { l.exited <- l.cmd.Wait() }()
	t.Cleanup(func() { _ = l.cmd.Process.Kill() })
	l.stdout = string(all)
	match := regexp.MustCompile(`^kubelab: ready server=https://\S+ kubeconfig=(\S+)\n$`).FindStringSubmatch(l.stdout)
	if match == nil {
		t.Fatalf("stdout is %q; want the line of a ready control plane; exit: %v, stderr: %s", l.stdout, l.wait(t), &l.stderr)
	}
	l.kubeconfig = match[1]
	return l
}

// wait returns how the process ended.
func (l *lab) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-l.exited:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("kubelab still runs after 20 s")
		return nil
	}
}

func client(t *testing.T, kubeconfig string) *kubernetes.Clientset {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	api, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return api
}

func absent(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// awaitPod watches a pod until done returns true.
func awaitPod(ctx context.Context, t *testing.T, api kubernetes.Interface, name, what string, done watchtools.ConditionFunc) *corev1.Pod {
	t.Helper()
	pods := api.CoreV1().Pods("lab-test")
	byName := fields.OneTermEqualSelector("metadata.name", name).String()
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			opts.FieldSelector = byName
			return pods.List(ctx, opts)
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			opts.FieldSelector = byName
			return pods.Watch(ctx, opts)
		},
	}
	event, err := watchtools.UntilWithSync(ctx, lw, &corev1.Pod{}, nil, done)
	if err != nil {
		t.Fatalf("pod %s: waiting until it is %s: %v", name, what, err)
	}
	return event.Object.(*corev1.Pod)
}

func TestUpAndDown(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dir := filepath.Join(t.TempDir(), "lab")
	lab := startLab(t, "--dir", dir, "--nodes", "1")
	api := client(t, lab.kubeconfig)

	t.Run("a pod is scheduled, deleted and gone", func(t *testing.T) { testPod(ctx, t, api) })
	t.Run("a Service has an address of IPv4, and of both families when it asks", func(t *testing.T) { testService(ctx, t, api) })
	t.Run("a node may write its own Node only", func(t *testing.T) {
		node := client(t, filepath.Join(dir, "node-1.kubeconfig"))
		if _, err := node.CoreV1().Nodes().Get(ctx, "node-1", metav1.GetOptions{}); err != nil {
			t.Errorf("reading the own node: %v", err)
		}
		if _, err := node.CoreV1().Secrets("kube-system").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("listing all secrets: got %v; want it forbidden", err)
		}
	})
	t.Run("kubectl lists the nodes", func(t *testing.T) {
		out, err := kubelab("kubectl", "--kubeconfig", lab.kubeconfig, "get", "nodes", "-o", "name").CombinedOutput()
		if err != nil || string(out) != "node/node-1\n" {
			t.Errorf("got %v: %s; want node/node-1", err, out)
		}
	})
	t.Run("kubectl fails with an exit code", func(t *testing.T) {
		out, err := kubelab("kubectl", "--kubeconfig", lab.kubeconfig, "get", "node", "node-9").CombinedOutput()
		if err == nil || !strings.Contains(string(out), `nodes "node-9" not found`) {
			t.Errorf("got %v: %s; want an error that names the node", err, out)
		}
	})
	t.Run("a second up reports that the directory is in use", func(t *testing.T) {
		out, err := kubelab("up", "--dir", dir).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "in use by a running kubelab (process "+strconv.Itoa(lab.cmd.Process.Pid)+")") {
			t.Errorf("got %v: %s", err, out)
		}
	})
	t.Run("down ends it and removes the directory", func(t *testing.T) {
		for range 2 { // the second finds nothing and succeeds as well
			if out, err := kubelab("down", "--dir", dir).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		if err := lab.wait(t); err != nil || lab.stderr.Len() > 0 {
			t.Errorf("up ended with %v and stderr %q; want success and silence", err, &lab.stderr)
		}
		if !absent(dir) {
			t.Errorf("%s is still there", dir)
		}
	})
}

func testPod(ctx context.Context, t *testing.T, api kubernetes.Interface) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab-test"}}
	if _, err := api.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	accounts := api.CoreV1().ServiceAccounts(ns.Name)
	created, err := accounts.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-created.ResultChan():
		created.Stop()
	case <-ctx.Done():
		t.Fatal("the namespace gets no service account")
	}

	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}
	pods := api.CoreV1().Pods(ns.Name)
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bound := awaitPod(ctx, t, api, "pod", "scheduled", func(e watch.Event) (bool, error) {
		return e.Object.(*corev1.Pod).Spec.NodeName != "", nil
	})
	if bound.Spec.NodeName != "node-1" {
		t.Errorf("bound to %q; want node-1", bound.Spec.NodeName)
	}
	if err := pods.Delete(ctx, "pod", *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
	if _, err := pods.Get(ctx, "pod", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after its deletion: got %v; want it gone", err)
	}
}

func testService(ctx context.Context, t *testing.T, api kubernetes.Interface) {
	t.Helper()
	dual := corev1.IPFamilyPolicyRequireDualStack
	for name, want := range map[string]struct {
		policy   *corev1.IPFamilyPolicy
		families []corev1.IPFamily
	}{
		"default": {nil, []corev1.IPFamily{corev1.IPv4Protocol}},
		"dual":    {&dual, []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}},
	} {
		service := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}, IPFamilyPolicy: want.policy},
		}
		got, err := api.CoreV1().Services("default").Create(ctx, service, metav1.CreateOptions{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !slices.Equal(got.Spec.IPFamilies, want.families) || len(got.Spec.ClusterIPs) != len(want.families) {
			t.Errorf("%s: families %v with addresses %v; want %v", name, got.Spec.IPFamilies, got.Spec.ClusterIPs, want.families)
		}
	}
}

func TestUpEndsWithItsOwner(t *testing.T) {
	owner := exec.Command("sleep", "600")
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = owner.Process.Kill() })
	dir := filepath.Join(t.TempDir(), "lab")
	lab := startLab(t, "--dir", dir, "--owner-pid", strconv.Itoa(owner.Process.Pid))
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait() // reaps it: a zombie's handle is readable as well, but this is the common case
	if err := lab.wait(t); err != nil {
		t.Errorf("up ended with %v: %s", err, &lab.stderr)
	}
	if !absent(dir) {
		t.Errorf("%s is still there", dir)
	}
}

func TestDirectoryLeftByKilledLab(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "lab")
	first := startLab(t, "--dir", dir)
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := first.wait(t); err == nil {
		t.Error("killed, but no error")
	}
	second := startLab(t, "--dir", dir)
	if err := second.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := second.wait(t); err != nil {
		t.Errorf("up ended with %v: %s", err, &second.stderr)
	}
	if !absent(dir) {
		t.Errorf("%s is still there", dir)
	}
}

// TestResume kills a control plane and continues with its state, for clients that know
// only the first control plane.
func TestResume(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "lab")
	first := startLab(t, "--dir", dir, "--nodes", "1")
	api := client(t, first.kubeconfig)
	ns, err := api.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	second := startLab(t, "--dir", dir, "--resume")
	if err := first.wait(t); err == nil {
		t.Error("the first ended without an error; want it killed")
	}
	if second.stdout != first.stdout {
		t.Errorf("resumed as %q; was %q", second.stdout, first.stdout)
	}
	found, err := api.CoreV1().Namespaces().Get(t.Context(), "kept", metav1.GetOptions{})
	if err != nil || found.UID != ns.UID {
		t.Errorf("the namespace after it: UID %s, %v; want %s", found.UID, err, ns.UID)
	}
	if _, err := client(t, filepath.Join(dir, "node-1.kubeconfig")).CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{}); err != nil {
		t.Errorf("the node, by its own credentials: %v", err)
	}
	if out, err := kubelab("down", "--dir", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if !absent(dir) {
		t.Errorf("%s is still there", dir)
	}
	out, err := kubelab("up", "--resume", "--dir", dir).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "no kubelab left anything in "+dir) {
		t.Errorf("nothing to resume: got %v: %s", err, out)
	}
}

func TestForeignDirectoryIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	mine := filepath.Join(dir, "mine")
	if err := os.WriteFile(mine, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"up", "down"} {
		out, err := kubelab(command, "--dir", dir).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "holds files that are not kubelab's") {
			t.Errorf("%s: got %v: %s", command, err, out)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("the directory holds %v (%v); want the former files", entries, err)
	}
}

func TestCommandLine(t *testing.T) {
	tests := []struct {
		name string
		args []string
		want string
	}{
		{name: "nothing", args: nil, want: "no command given"},
		{name: "unknown command", args: []string{"start"}, want: `unknown command "start"`},
		{name: "no directory", args: []string{"up"}, want: "--dir is missing"},
		{name: "unknown flag", args: []string{"up", "--fast"}, want: "not defined: -fast"},
		{name: "extra argument", args: []string{"up", "--dir", "d", "x"}, want: `unexpected argument "x"`},
		{name: "negative nodes", args: []string{"up", "--dir", "d", "--nodes", "-1"}, want: "--nodes is -1; want 0 to 1000"},
		{name: "bind to all", args: []string{"up", "--dir", "d", "--bind", "0.0.0.0"}, want: "want one IP address"},
		{name: "resumed with nodes", args: []string{"up", "--dir", "d", "--resume", "--nodes", "2"}, want: "leave --nodes and --bind out"},
		{name: "down without directory", args: []string{"down"}, want: "down takes --dir DIR"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := dispatch(t.Context(), test.args, stdio{})
			if !errors.Is(err, errUsage) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v; want a usage error with %q", err, test.want)
			}
		})
	}
}

func TestServiceRanges(t *testing.T) {
	for bind, want := range map[string]struct{ ranges, first string }{
		"127.0.0.1":    {"10.96.0.0/16 fd00:96::/108", "10.96.0.1"},
		"192.168.77.1": {"10.96.0.0/16 fd00:96::/108", "10.96.0.1"},
		"fd00:77::1":   {"fd00:96::/108", "fd00:96::1"},
	} {
		addr := netip.MustParseAddr(bind)
		if got := strings.Join(serviceRanges(addr), " "); got != want.ranges {
			t.Errorf("Services of an API server at %s have addresses of %s; want %s", bind, got, want.ranges)
		}
		if got := kubernetesService(addr).String(); got != want.first {
			t.Errorf("the Service `kubernetes` of an API server at %s has %s; want %s", bind, got, want.first)
		}
	}
}

func TestStartFailureSaysWhyAndWhere(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "lab")
	out, err := kubelab("up", "--dir", dir, "--bind", "192.0.2.1").CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("ended with %v; want exit code 1", err)
	}
	for _, want := range []string{"192.0.2.1", "log: " + filepath.Join(dir, "kubelab.log")} {
		if !strings.Contains(string(out), want) {
			t.Errorf("output lacks %q:\n%s", want, out)
		}
	}
}
