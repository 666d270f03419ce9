package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"fairlead.dev/fairlead/test/harness"
)

const qemu = "qemu-system-x86_64"

// inVM is in the environment of commands in the VM. Tests that read it fail if a feature
// of the kernel is missing (nettest.Missing), because the VM has the features that tests
// need.
const inVM = "FAIRLEAD_VM=1"

// machine is a VM, for one boot.
type machine struct {
	kernel  string // directory of the kernel
	init    string // this program, which is process 1 of the VM
	timeout time.Duration
	report  harness.Reporter
}

// command is a command for the VM.
type command struct {
	// Title is printed before the output, if it is not empty.
	Title string
	Dir   string
	Args  []string
}

// plan is the input of process 1 of the VM.
type plan struct {
	Commands []command
	Env      []string
}

// ending is one line of the status port: a command has ended.
type ending struct {
	Status int
	// Error is the reason why the command did not start.
	Error string
}

// Files in the directory of a run.
const (
	initramfsFile = "initramfs"
	endingsFile   = "endings"
	consoleFile   = "console"
)

// checkMachine returns a lackError if this machine cannot run the VM.
func checkMachine() error {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return lackError{fmt.Errorf("a machine with Linux on amd64; this is %s on %s", runtime.GOOS, runtime.GOARCH)}
	}
	if _, err := exec.LookPath(qemu); err != nil {
		return lackError{fmt.Errorf("the program %s: on Debian and Ubuntu, apt-get install -y --no-install-recommends qemu-system-x86", qemu)}
	}
	return nil
}

// run boots the VM, runs the commands one after the other, and writes their output to
// out. It returns the exit status of each command. All commands are run, whatever the
// status of those before. Errors: the VM or its timeout ended before the last command; no
// process and no file is left then either.
func (m machine) run(ctx context.Context, commands []command, out io.Writer) ([]int, error) {
	work, err := os.MkdirTemp("", "fairlead-vm-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the VM: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	p := plan{Commands: commands, Env: append(os.Environ(), inVM)}
	if err := writeInitramfs(filepath.Join(work, initramfsFile), m.init, m.kernel, p); err != nil {
		return nil, fmt.Errorf("make the initramfs of the VM: %w", err)
	}
	acceleration := "tcg,thread=multi"
	if virtualization() {
		acceleration = "kvm"
	}
	m.report.Say("booting the kernel %s (%s)", kernelRelease(m.kernel), acceleration)
	began := time.Now()
	bounded, cancel := context.WithTimeoutCause(ctx, m.timeout, errTimeout)
	defer cancel()
	vmErr := m.boot(bounded, work, acceleration, out)
	statuses, err := readEndings(filepath.Join(work, endingsFile), commands)
	switch {
	case err != nil:
		return nil, err
	case len(statuses) == len(commands):
		m.report.Say("the VM lived %.1fs", time.Since(began).Seconds())
		return statuses, nil
	}
	last := commands[len(statuses)]
	switch cause := context.Cause(bounded); {
	case errors.Is(cause, errTimeout):
		return nil, fmt.Errorf("%q in the VM: %w after %v; --timeout sets another time%s", last.Args, errTimeout, m.timeout, consoleTail(work))
	case cause != nil:
		return nil, cause
	case vmErr == nil:
		vmErr = errors.New("the VM ended")
	}
	return nil, fmt.Errorf("%q in the VM: %w%s", last.Args, vmErr, consoleTail(work))
}

var errTimeout = errors.New("the VM was ended")

// boot runs QEMU until the VM ends or the context does.
func (m machine) boot(ctx context.Context, work, acceleration string, out io.Writer) error {
	// Pdeathsig follows the thread that starts the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, qemu,
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", "q35", "-accel", acceleration, "-cpu", "max", "-smp", "2", "-m", "1024",
		"-kernel", filepath.Join(m.kernel, vmlinuxFile), "-initrd", filepath.Join(work, initramfsFile),
		"-append", "console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable",
		"-chardev", "file,id=console,path="+filepath.Join(work, consoleFile), "-serial", "chardev:console",
		"-device", "virtio-serial-pci",
		// Not stdio, which closes the port when the input ends.
		"-chardev", "file,id=output,path=/proc/self/fd/1", "-device", fmt.Sprintf("virtserialport,chardev=output,nr=%d", outputPort),
		"-chardev", "file,id=endings,path="+filepath.Join(work, endingsFile), "-device", fmt.Sprintf("virtserialport,chardev=endings,nr=%d", endingsPort),
		"-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap", "-device", "virtio-9p-pci,fsdev=root,mount_tag="+rootTag,
	)
	// Always a pipe: QEMU truncates a file.
	cmd.Stdout, cmd.Stderr = struct{ io.Writer }{out}, &stderr
	// Ctrl-C reaches only this program, which ends QEMU.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", qemu, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return nil
}

// virtualization reports whether KVM can use the processor. /dev/kvm alone is not enough:
// inside of some VMs it exists, and Debian's kernel hangs.
func virtualization() bool {
	device, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	_ = device.Close()
	raw, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(raw)) {
		if flags, ok := strings.CutPrefix(line, "flags"); ok {
			return strings.Contains(flags, " vmx ") || strings.Contains(flags, " svm ")
		}
	}
	return false
}

// readEndings returns the exit status of each command that has ended.
func readEndings(file string, commands []command) ([]int, error) {
	raw, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var out []int
	for line := range bytes.Lines(raw) {
		var e ending
		if err := json.Unmarshal(line, &e); err != nil || len(out) == len(commands) {
			return nil, fmt.Errorf("the VM reported %q; want one ending for each of %d commands", line, len(commands))
		}
		if e.Error != "" {
			return nil, fmt.Errorf("%q in the VM: %s", commands[len(out)].Args, e.Error)
		}
		out = append(out, e.Status)
	}
	return out, nil
}

// consoleTail returns the end of the VM's console, for an error.
func consoleTail(work string) string {
	const lines = 15
	raw, err := os.ReadFile(filepath.Join(work, consoleFile))
	text := strings.TrimSpace(string(raw))
	if err != nil || text == "" {
		return ""
	}
	all := strings.Split(text, "\n")
	return "\nthe end of its console:\n" + strings.Join(all[max(0, len(all)-lines):], "\n")
}
