package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"

	"fairlead.dev/fairlead/test/kubeclient"
)

// probeTimeout bounds the check whether a control plane that left its kubeconfig still
// runs.
const probeTimeout = 5 * time.Second

// lab is a control plane that kubelab runs.
type lab struct {
	program string
	dir     string
	owner   int // the control plane ends with this process
}

// findControlPlane returns the kubeconfig of a control plane of a process and starts it if it does not run. It holds a
// lock until unlock is called, so that test binaries prepare the cluster one after the other.
func findControlPlane(owner, number int) (kubeconfig string, l lab, unlock func(), err error) {
	if kubeconfig := os.Getenv("FAIRLEAD_TEST_KUBECONFIG"); kubeconfig != "" {
		unlock, err := lockFile(kubeconfig, exclusive)
		if err != nil {
			return "", lab{}, nil, fmt.Errorf("FAIRLEAD_TEST_KUBECONFIG: %w", err)
		}
		return kubeconfig, lab{}, unlock, nil
	}
	l.owner = owner
	if l.program, err = findKubelab(); err != nil {
		return "", lab{}, nil, err
	}
	if l.dir, err = dirOf(owner, number); err != nil {
		return "", lab{}, nil, err
	}
	// The lock is on the program, because that exists before the control plane and need
	// not be removed after it.
	unlock, err = lockFile(l.program, exclusive)
	if err != nil {
		return "", lab{}, nil, err
	}
	kubeconfig = filepath.Join(l.dir, "kubeconfig")
	if answers(kubeconfig) {
		return kubeconfig, l, unlock, nil
	}
	if err := l.start(); err != nil {
		unlock()
		return "", lab{}, nil, err
	}
	return kubeconfig, l, unlock, nil
}

// dirOf returns the directory of a control plane that belongs to a process. The
// process's start time distinguishes it from an earlier process with the same ID.
func dirOf(pid, number int) (string, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", fmt.Errorf("start time of process %d: %w", pid, err)
	}
	// proc(5): the second field, the name, is in parentheses and may hold anything; the start time is the 22nd.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	const startTime = 22 - 3
	if len(fields) <= startTime {
		return "", fmt.Errorf("start time of process %d: /proc/%d/stat has %d fields", pid, pid, len(fields)+2)
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("fairlead-kubelab-%d-%s-%d", pid, fields[startTime], number)), nil
}

// Kubelab returns the path of the program kubelab, whose command kubectl is kubectl.
func Kubelab() (string, error) { return findKubelab() }

// findKubelab returns the path of the kubelab program.
func findKubelab() (string, error) {
	if path := os.Getenv("FAIRLEAD_KUBELAB"); path != "" {
		if _, err := exec.LookPath(path); err != nil {
			return "", fmt.Errorf("FAIRLEAD_KUBELAB: %w", err)
		}
		return path, nil
	}
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	path := filepath.Join(root, "bin", "kubelab")
	if _, err := exec.LookPath(path); err != nil {
		return "", fmt.Errorf("bin/kubelab is not built; run this first (it takes minutes the first time): make -C %s bin/kubelab", root)
	}
	return path, nil
}

// moduleRoot returns the directory of go.mod. The go command runs a test in the directory of its package; source paths
// in the binary are no help, because -trimpath shortens them.
func moduleRoot() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("module root: %w", err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no go.mod in %s or above it; set FAIRLEAD_KUBELAB to the kubelab program", start)
		}
	}
}

// start starts the control plane and returns when it is ready. more are further flags of kubelab up.
func (l lab) start(more ...string) error {
	args := append([]string{"up", "--dir", l.dir, "--owner-pid", strconv.Itoa(l.owner)}, more...)
	cmd := exec.Command(l.program, args...)
	// It gets a session of its own: an interrupt from the terminal is for the tests,
	// which may still need the control plane for their cleanup.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting kubelab: %w", err)
	}
	output, err := io.ReadAll(stdout) // it closes its standard output when it is ready
	if err != nil || !bytes.HasPrefix(output, []byte("kubelab: ready ")) {
		reason, readErr := io.ReadAll(stderr)
		return fmt.Errorf("%s did not become ready: %w\n%s%s", l.program, errors.Join(err, readErr, cmd.Wait()), output, reason)
	}
	// The process stays, also for other test binaries. Its later messages are in its log.
	go func() { _ = cmd.Wait() }() // reaps it if it ends first
	return errors.Join(stdout.Close(), stderr.Close())
}

// answers reports whether a control plane answers behind a kubeconfig.
func answers(kubeconfig string) bool {
	cfg, err := kubeclient.Config(kubeconfig)
	if err != nil {
		return false
	}
	cfg.Timeout = probeTimeout
	api, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return false
	}
	return api.CoreV1().RESTClient().Get().AbsPath("/readyz").Do(context.Background()).Error() == nil
}
