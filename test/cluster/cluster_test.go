package cluster_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
)

// asChild is the variable that makes TestChild run as the child of another test.
const asChild = "FAIRLEAD_CLUSTER_TEST_CHILD"

// TestChild runs in the test binaries that TestOneControlPlaneForARun starts: it prints
// the control plane that it got, and ends on request.
func TestChild(t *testing.T) {
	if os.Getenv(asChild) == "" {
		t.Skip("runs in other tests only")
	}
	c := cluster.New(t)
	fmt.Printf("child: %s %s %s\n", c.REST.Host, c.Kubeconfig, c.Namespace)
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		t.Error(err)
	}
}

// TestOneControlPlaneForARun runs two test binaries at once below a shell, as the go command would.
func TestOneControlPlaneForARun(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane of its own, which short mode does without")
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// A shell gives no standard input to a program in the background, hence the detour over descriptor 3.
	script := `exec 3<&0; "$0" "$@" <&3 & first=$!; "$0" "$@" <&3 & wait $first && wait $! && echo parent: done`
	parent := exec.Command("/bin/sh", "-c", script, program, "-test.run=^TestChild$", "-test.count=1")
	parent.Env = append(os.Environ(), asChild+"=1", "FAIRLEAD_TEST_KUBECONFIG=")
	parent.Stderr = os.Stderr
	stdin, err := parent.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	first, second := nextChild(t, lines), nextChild(t, lines)
	if first.host != second.host || first.kubeconfig != second.kubeconfig {
		t.Errorf("two binaries of one run got %+v and %+v; want one control plane", first, second)
	}
	if first.namespace == second.namespace {
		t.Errorf("two binaries got the namespace %s both", first.namespace)
	}

	dir := filepath.Dir(first.kubeconfig)
	kubelab := holderOf(t, filepath.Join(dir, "kubelab.lock"))
	if err := stdin.Close(); err != nil {
		t.Fatal(err)
	}
	var rest strings.Builder
	for lines.Scan() {
		rest.WriteString(lines.Text() + "\n")
	}
	if err := parent.Wait(); err != nil || !strings.Contains(rest.String(), "parent: done") {
		t.Fatalf("the run ended with %v: %s", err, &rest)
	}
	awaitEnd(t, kubelab)
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after the run: %s is there (%v); want it gone", dir, err)
	}
}

// child is the output of TestChild.
type child struct {
	host, kubeconfig, namespace string
}

func nextChild(t *testing.T, lines *bufio.Scanner) child {
	t.Helper()
	for lines.Scan() {
		var c child
		if n, _ := fmt.Sscanf(lines.Text(), "child: %s %s %s", &c.host, &c.kubeconfig, &c.namespace); n == 3 {
			return c
		}
		t.Log(lines.Text())
	}
	t.Fatalf("the test binary ended too early: %v", lines.Err())
	return child{}
}

// holderOf returns a handle of the process that holds kubelab's lock.
func holderOf(t *testing.T, path string) (pidfd int) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(file.Fd(), unix.F_GETLK, &lock); err != nil || lock.Type == unix.F_UNLCK {
		t.Fatalf("no process holds %s (%v); want the running kubelab", path, err)
	}
	pidfd, err = unix.PidfdOpen(int(lock.Pid), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(pidfd) })
	return pidfd
}

func awaitEnd(t *testing.T, pidfd int) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(time.Until(deadline).Milliseconds()))
		if errors.Is(err, unix.EINTR) && time.Now().Before(deadline) {
			continue
		}
		if err != nil || n == 0 {
			t.Fatalf("kubelab still runs 20 s after its owner (%v)", err)
		}
		return
	}
}

func TestTestsAreIsolated(t *testing.T) {
	var former string
	t.Run("the first", func(t *testing.T) {
		c := cluster.New(t)
		former = c.Namespace
		c.Pod("same-name", c.Node(c.Namespace).Name)
		attach(t, c, "same-name")
	})
	t.Run("the second", func(t *testing.T) {
		c := cluster.New(t)
		if c.Namespace == former {
			t.Errorf("got the namespace %s again", former)
		}
		pod := c.Pod("same-name", c.Node(c.Namespace).Name, func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} })
		if pod.Spec.NodeName != c.Namespace || pod.UID == "" || pod.Labels["a"] != "b" {
			t.Errorf("got pod %+v; want it created, bound to %s and labelled", pod, c.Namespace)
		}
		c.Eventually(t, "the namespace of the first to go", func(ctx context.Context) error {
			err := c.Client.Get(ctx, client.ObjectKey{Name: former}, &corev1.Namespace{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("namespace %s: %w", former, errors.Join(errors.New("is there"), err))
		})
		err := c.Client.Get(t.Context(), client.ObjectKey{Name: former}, &corev1.Node{})
		if !apierrors.IsNotFound(err) {
			t.Errorf("the node of the first: got %v; want it gone", err)
		}
	})
}

func TestExclusiveLeavesNothing(t *testing.T) {
	var c *cluster.Cluster
	t.Run("a test that leaves everything", func(t *testing.T) {
		c = cluster.Exclusive(t)
		c.Pod("pod", c.Node("node-a").Name)
		attach(t, c, "pod")
		pool := &v1alpha1.IPPool{
			ObjectMeta: metav1.ObjectMeta{Name: "pool", Finalizers: []string{v1alpha1.ReleaseFinalizer}},
			Spec: v1alpha1.IPPoolSpec{
				Ranges:   []string{"10.0.0.0/24"},
				Cooldown: &metav1.Duration{Duration: 30 * time.Second},
			},
		}
		network := &v1alpha1.NodeNetwork{
			ObjectMeta: metav1.ObjectMeta{Name: "node-a", Finalizers: []string{v1alpha1.ReleaseFinalizer}},
		}
		for _, object := range []client.Object{pool, network} {
			if err := c.Client.Create(t.Context(), object); err != nil {
				t.Fatal(err)
			}
		}
	})
	if c == nil {
		return // the test was skipped, or has failed
	}
	counts := map[string]int{}
	lists := map[string]client.ObjectList{
		"attachments": &v1alpha1.PodAttachmentList{},
		"pools":       &v1alpha1.IPPoolList{},
		"blocks":      &v1alpha1.IPBlockList{},
		"networks":    &v1alpha1.NodeNetworkList{},
		"pods":        &corev1.PodList{},
		"nodes":       &corev1.NodeList{},
	}
	for what, list := range lists {
		metadata := &metav1.PartialObjectMetadataList{}
		gvk, err := c.Client.GroupVersionKindFor(list)
		if err != nil {
			t.Fatal(err)
		}
		metadata.SetGroupVersionKind(gvk)
		if err := c.Client.List(t.Context(), metadata); err != nil {
			t.Fatal(err)
		}
		if n := len(metadata.Items); n > 0 {
			counts[what] = n
		}
	}
	if diff := cmp.Diff(map[string]int{}, counts); diff != "" {
		t.Errorf("left over (-want +got):\n%s", diff)
	}
}

func TestRestart(t *testing.T) {
	t.Run("one that others use", func(t *testing.T) {
		if err := cluster.New(t).Restart(); err == nil {
			t.Error("it was restarted")
		}
	})
	if os.Getenv("FAIRLEAD_TEST_KUBECONFIG") != "" {
		t.Skip("restarts the control plane, and FAIRLEAD_TEST_KUBECONFIG names another cluster")
	}
	c := cluster.Exclusive(t)
	pod := c.Pod("pod", c.Node("node-a").Name)
	if err := c.Restart(); err != nil {
		t.Fatal(err)
	}
	found := &corev1.Pod{}
	if err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(pod), found); err != nil || found.UID != pod.UID {
		t.Errorf("the pod after it: UID %s, %v; want %s", found.UID, err, pod.UID)
	}
}

// attach creates a PodAttachment that has a finalizer and no controller.
func attach(t *testing.T, c *cluster.Cluster, pod string) {
	t.Helper()
	attachment := &v1alpha1.PodAttachment{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: pod, Finalizers: []string{v1alpha1.ReleaseFinalizer}},
		Spec: v1alpha1.PodAttachmentSpec{
			PodName:  pod,
			PodUID:   "0b5c1d6e-0000-0000-0000-000000000000",
			NodeName: "node",
			Interfaces: []v1alpha1.Interface{{
				Name:    "eth0",
				Network: v1alpha1.DefaultNetwork,
				Driver:  "native",
				Binding: v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{Name: "br0"}},
			}},
		},
	}
	if err := c.Client.Create(t.Context(), attachment); err != nil {
		t.Fatal(err)
	}
}

// Two tests at the same time have control planes of their own; a later test uses one of them.
func TestExclusiveIsForOneTest(t *testing.T) {
	if os.Getenv("FAIRLEAD_TEST_KUBECONFIG") != "" {
		t.Skip("starts control planes, and FAIRLEAD_TEST_KUBECONFIG names another cluster")
	}
	var hosts []string
	t.Run("at the same time", func(t *testing.T) {
		for range 2 {
			hosts = append(hosts, cluster.Exclusive(t).REST.Host)
		}
		if hosts[0] == hosts[1] {
			t.Errorf("both have %s", hosts[0])
		}
	})
	if len(hosts) < 2 {
		return // the test was skipped, or has failed
	}
	t.Run("later", func(t *testing.T) {
		if host := cluster.Exclusive(t).REST.Host; !slices.Contains(hosts, host) {
			t.Errorf("it has %s; want one of %v", host, hosts)
		}
	})
}
