package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"fairlead.dev/fairlead/test/harness"
)

// vm is the program and the directory of its temporary files.
type vm struct{ program, temp string }

// newVM builds the program. The test ends with the assertion that no process, mount or
// file is left.
func newVM(t *testing.T) vm {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a VM, which short mode does without")
	}
	if err := checkMachine(); err != nil {
		t.Skipf("needs %v", err)
	}
	v := vm{program: filepath.Join(t.TempDir(), "vm"), temp: t.TempDir()}
	build := exec.Command("go", "build", "-o", v.program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false") // with the race detector too
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v: %s", err, out)
	}
	t.Cleanup(func() {
		left, err := harness.Work(v.temp).Left()
		if err != nil || len(left) > 0 {
			t.Errorf("left on this machine: %q, %v", left, err)
		}
		files, err := os.ReadDir(v.temp)
		if err != nil || len(files) > 0 {
			t.Errorf("left in the directory of temporary files: %v, %v", files, err)
		}
	})
	return v
}

// command returns the program with a verb and arguments, and what it writes to stderr.
func (v vm) command(verb string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	var stderr bytes.Buffer
	cmd := exec.Command(v.program, append([]string{verb, "--kernel", filepath.Join("..", "..", "bin", "kernel")}, args...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+v.temp)
	cmd.Stderr = &stderr
	return cmd, &stderr
}

// ends runs the command and asserts its exit code. It skips the test if this machine
// cannot get the kernel.
func ends(t *testing.T, cmd *exec.Cmd, stderr *bytes.Buffer, want int) {
	t.Helper()
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	switch got := cmd.ProcessState.ExitCode(); got {
	case want:
	case 3:
		t.Skip(stderr)
	default:
		t.Fatalf("exit code %d, want %d: %s", got, want, stderr)
	}
}

// The output arrives whole, behind the content that the file of the output had, and the
// status is that of the command.
func TestOutputAndStatus(t *testing.T) {
	const numbers = 100_000
	v := newVM(t)
	cmd, stderr := v.command("run", "--", "sh", "-c", fmt.Sprintf("seq %d; echo end >&2; exit 7", numbers))
	out, err := os.OpenFile(filepath.Join(t.TempDir(), "output"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	_, _ = out.WriteString("before\n")
	cmd.Stdout = out
	ends(t, cmd, stderr, 7)

	var want strings.Builder
	want.WriteString("before\n")
	for n := range numbers {
		_, _ = fmt.Fprintln(&want, n+1)
	}
	want.WriteString("end\n")
	got, err := os.ReadFile(out.Name())
	if err != nil || string(got) != want.String() {
		t.Errorf("output of %d bytes, %v; want %d bytes, to the end %q", len(got), err, want.Len(), got[max(0, len(got)-50):])
	}
}

func TestFailingTestFailsTheRun(t *testing.T) {
	var out bytes.Buffer
	cmd, stderr := newVM(t).command("test", "./testdata/failing")
	cmd.Stdout = &out
	ends(t, cmd, stderr, exitFailed)
	for _, want := range []string{
		"=== fairlead.dev/fairlead/test/vm/testdata/failing\n",
		"failing_test.go:8: fails on purpose\n",
		"failed: TestFails\n",
		"skipped, though the VM has what tests need: TestSkips\n",
		"vm: FAILED packages=1 passed=1 failed=1 skipped=1\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, out.String())
		}
	}
}

func TestTimeoutEndsTheVM(t *testing.T) {
	cmd, stderr := newVM(t).command("run", "--timeout", "5s", "--", "sleep", "1000")
	ends(t, cmd, stderr, exitFailed)
	if want := `["sleep" "1000"] in the VM: the VM was ended after 5s`; !strings.Contains(stderr.String(), want) {
		t.Errorf("stderr lacks %q:\n%s", want, stderr)
	}
}

func TestInterruptEndsTheVM(t *testing.T) {
	cmd, _ := newVM(t).command("run", "--", "sh", "-c", "echo running; sleep 1000")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, readErr := bufio.NewReader(out).ReadString('\n')
	if readErr == nil {
		_ = cmd.Process.Signal(syscall.SIGINT)
	}
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait()
	switch code := cmd.ProcessState.ExitCode(); {
	case code == 3:
		t.Skip(stderr.String())
	case readErr != nil || line != "running\n":
		t.Fatalf("output %q, %v: %s", line, readErr, &stderr)
	case code != exitFailed || !strings.Contains(stderr.String(), harness.ErrInterrupted.Error()):
		t.Errorf("exit code %d, want %d: %s", code, exitFailed, &stderr)
	}
}
