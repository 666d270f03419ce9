package harness

import (
	"bufio"
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
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/test/netlab"
)

func TestMain(m *testing.M) {
	if code, inside := Inside(inside); inside {
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// testPlan is the plan of the program inside of the tests.
type testPlan struct {
	Print, Fail string
	// Wait makes it create remains, print "ready" and wait until it is asked to end;
	// Stubborn, for ever.
	Wait, Stubborn bool
}

func inside(ctx context.Context, w Work, _ *Processes) error {
	var p testPlan
	if err := w.ReadPlan(&p); err != nil {
		return err
	}
	fmt.Println(p.Print)
	if p.Fail != "" {
		return errors.New(p.Fail)
	}
	if !p.Wait {
		return nil
	}
	if err := litter(w); err != nil {
		return err
	}
	fmt.Println("ready")
	<-ctx.Done()
	if p.Stubborn {
		fmt.Println("stays")
		select {}
	}
	return context.Cause(ctx)
}

// litter creates a process that ignores SIGTERM and whose parent is gone, a pinned
// network namespace, and a mount.
func litter(w Work) error {
	orphan := exec.Command("sh", "-c", `trap "" TERM HUP; tail -f /dev/null `+w.Path("orphan")+` 2>/dev/null &`)
	if err := orphan.Run(); err != nil {
		return err
	}
	ns, err := netlab.NewNamespace()
	if err != nil {
		return err
	}
	if err := ns.Pin(filepath.Join(w.Tmpfs(), "pinned")); err != nil {
		return err
	}
	return unix.Mount("tmpfs", w.Logs(), "tmpfs", 0, "")
}

// entered is a waiting program inside of the namespaces.
type entered struct {
	work   Work
	lines  *bufio.Scanner
	result chan error
}

func enter(t *testing.T, p testPlan) *entered {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making namespaces needs root")
	}
	work, err := NewWork("harness-test")
	if err != nil {
		t.Fatal(err)
	}
	// The variable marks all processes that are started inside.
	t.Setenv("HARNESS_TEST", string(work))
	reader, writer := io.Pipe()
	e := &entered{work: work, lines: bufio.NewScanner(reader), result: make(chan error, 1)}
	go func() {
		err := work.Enter(p, writer)
		_ = writer.Close()
		e.result <- err
	}()
	e.await(t, "ready")
	return e
}

// await reads the program's output up to a line with this prefix.
func (e *entered) await(t *testing.T, prefix string) {
	t.Helper()
	for e.lines.Scan() {
		if strings.HasPrefix(e.lines.Text(), prefix) {
			return
		}
	}
	t.Fatalf("no line %q: %v", prefix, <-e.result)
}

// end waits until the program has ended.
func (e *entered) end() error {
	for e.lines.Scan() {
	}
	return <-e.result
}

// processes returns the PIDs of the processes whose file in /proc contains all words.
func processes(t *testing.T, file string, words ...string) []int {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/" + file)
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		found := err == nil // otherwise the process has just ended
		for _, word := range words {
			found = found && bytes.Contains(raw, []byte(word))
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil && found {
			pids = append(pids, pid)
		}
	}
	return pids
}

// checkNothingLeft fails the test if a mount or a process is left, and removes the work
// directory. A namespace without a process ends by itself. (Its number proves nothing,
// because the kernel uses it again.)
func (e *entered) checkNothingLeft(t *testing.T) {
	t.Helper()
	left, err := e.work.Left()
	if pids := processes(t, "environ", "HARNESS_TEST="+string(e.work)); err != nil || len(left)+len(pids) > 0 {
		t.Errorf("left: %q, processes %v, %v; want nothing", left, pids, err)
	}
	if err := e.work.Close(nil, false, io.Discard); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(string(e.work)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the work directory: %v; want none", err)
	}
}

func interrupt(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
}

func TestEnter(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("making namespaces needs root")
	}
	for _, want := range []string{"", "no luck: two\nlines"} {
		work, err := NewWork("harness-test", "more")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(work.Path("more")); err != nil {
			t.Error(err)
		}
		var out bytes.Buffer
		err = work.Enter(testPlan{Print: "hello", Fail: want}, &out)
		if got := fmt.Sprint(err); out.String() != "hello\n" || err == nil && want != "" || err != nil && got != want {
			t.Errorf("printed %q and ended with %v; want hello and %q", out.String(), err, want)
		}
		if err := work.Close(nil, false, io.Discard); err != nil {
			t.Error(err)
		}
	}
}

func TestInterruptLeavesNothing(t *testing.T) {
	e := enter(t, testPlan{Wait: true})
	interrupt(t)
	e.await(t, "interrupt: cleaning up")
	if err := e.end(); err != ErrInterrupted { //nolint:errorlint // it must be just that
		t.Errorf("ended with %v; want %v", err, ErrInterrupted)
	}
	e.checkNothingLeft(t)
}

func TestSecondInterruptEndsAtOnce(t *testing.T) {
	e := enter(t, testPlan{Wait: true, Stubborn: true})
	interrupt(t)
	e.await(t, "stays")
	interrupt(t)
	if err := e.end(); err != ErrInterrupted { //nolint:errorlint // it must be just that
		t.Errorf("ended with %v; want %v", err, ErrInterrupted)
	}
	e.checkNothingLeft(t)
}

func TestKilledInnerProgramLeavesNothing(t *testing.T) {
	for _, victim := range []string{initCommand, workCommand} {
		t.Run(victim, func(t *testing.T) {
			e := enter(t, testPlan{Wait: true})
			if all := processes(t, "environ", "HARNESS_TEST="+string(e.work)); len(all) != 3 {
				t.Errorf("processes %v; want two programs and an orphan", all)
			}
			pids := processes(t, "cmdline", victim, string(e.work))
			if len(pids) != 1 {
				t.Errorf("processes %v; want one", pids)
			}
			for _, pid := range pids {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Error(err)
				}
			}
			if err := e.end(); err == nil || !strings.Contains(err.Error(), "the inner program: ") || !strings.Contains(err.Error(), "killed") {
				t.Errorf("ended with %v; want that it was killed", err)
			}
			e.checkNothingLeft(t)
		})
	}
}

func TestLeft(t *testing.T) {
	w := Work(t.TempDir())
	if left, err := w.Left(); err != nil || len(left) > 0 {
		t.Errorf("without a run %q, %v; want nothing", left, err)
	}
	process := exec.Command("sh", "-c", "echo ready; read line", w.Path("x"))
	stdin, err := process.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	// Between fork and exec the child has the parent's command line.
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Error(err)
	}
	if left, err := w.Left(); err != nil || len(left) != 1 || !strings.Contains(left[0], w.Path("x")) {
		t.Errorf("with a process %q, %v; want the process", left, err)
	}
	stdin.Close()
	_ = process.Wait() // its line did not come
}

func TestClose(t *testing.T) {
	failure := errors.New("no luck")
	logs := []string{"logs", "logs/kubernetes.log", "logs/x.log"}
	tests := []struct {
		name     string
		err      error
		keepLogs bool
		wantErr  string
		wantOut  string
		want     []string
	}{
		{"a success", nil, false, "", "", nil},
		{"a success, logs kept", nil, true, "", "logs: WORK/logs\n", logs},
		{"a failure", failure, false, "no luck\nlogs: WORK/logs", "", logs},
		{"interrupted", ErrInterrupted, false, ErrInterrupted.Error(), "", nil},
		{"interrupted, and a failure", errors.Join(ErrInterrupted, failure), false, ErrInterrupted.Error() + "\nno luck\nlogs: WORK/logs", "", logs},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := Work(t.TempDir())
			for _, file := range []string{filepath.Join(w.Logs(), "x.log"), filepath.Join(w.Kubelab(), "kubelab.log"), w.planFile()} {
				if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var out bytes.Buffer
			var said string
			if err := w.Close(tt.err, tt.keepLogs, &out); err != nil {
				said = err.Error()
			}
			generic := strings.NewReplacer(string(w), "WORK")
			if diff := cmp.Diff([]string{tt.wantErr, tt.wantOut}, []string{generic.Replace(said), generic.Replace(out.String())}); diff != "" {
				t.Errorf("error and output (-want +got):\n%s", diff)
			}
			var got []string
			for _, pattern := range []string{"*", "*/*"} {
				files, err := filepath.Glob(w.Path(pattern))
				if err != nil {
					t.Fatal(err)
				}
				for _, file := range files {
					got = append(got, strings.TrimPrefix(file, string(w)+"/"))
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("remains (-want +got):\n%s", diff)
			}
		})
	}
}

// here is the place of this process.
func here(fn func() error) error { return fn() }

// newProcesses returns Processes whose failure ends the context.
func newProcesses(t *testing.T) (*Processes, context.Context) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	return &Processes{Logs: t.TempDir(), Failed: cancel}, ctx
}

// start starts a shell script and returns when it has printed a line.
func start(t *testing.T, c *Processes, name, script string) *Process {
	t.Helper()
	p, err := c.Command(name, "/bin/sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	p.Cmd.Stdout = nil
	stdout, err := p.Cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(here, p); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestProgramThatEndsUnasked(t *testing.T) {
	c, ctx := newProcesses(t)
	p, err := c.Command("failing", "/bin/sh", "-c", "echo first; echo >&2 the reason; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(here, p); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	<-p.Done()
	if got, want := context.Cause(ctx).Error(), "failing ended: exit status 3; the end of its log:\nfirst\nthe reason"; got != want {
		t.Errorf("Failed got %q; want %q", got, want)
	}
	if err := p.Stop(); err != nil {
		t.Errorf("stopped after that: %v; want nil, Failed knows", err)
	}
}

func TestStop(t *testing.T) {
	tests := []struct {
		name, script string
		timeout      time.Duration
		want         string
	}{
		{"in order", `trap "exit 0" TERM; echo; while :; do :; done`, stopTimeout, ""},
		{"with an error", `trap "exit 4" TERM; echo; while :; do :; done`, stopTimeout, "asked to stop: program ended: exit status 4"},
		{"ignores it", `trap "" TERM; echo; exec tail -f /dev/null`, time.Millisecond, "program did not stop within 1ms"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, ctx := newProcesses(t)
			p := start(t, c, "program", tt.script)
			err := p.stop(tt.timeout)
			if got := fmt.Sprint(err); tt.want == "" && err != nil || !strings.HasPrefix(got, tt.want) {
				t.Errorf("stop: %v; want %q", err, tt.want)
			}
			select {
			case <-p.Done():
			default:
				t.Error("it has not ended")
			}
			if err := ctx.Err(); err != nil {
				t.Errorf("Failed got %v; want nothing", context.Cause(ctx))
			}
		})
	}
}

func TestStopAllTellsOfEach(t *testing.T) {
	c, _ := newProcesses(t)
	script := `trap "exit 5" TERM; echo; while :; do :; done`
	err := StopAll(start(t, c, "one", script), start(t, c, "two", script))
	if err == nil || !strings.Contains(err.Error(), "one ended: exit status 5") || !strings.Contains(err.Error(), "two ended: exit status 5") {
		t.Errorf("StopAll: %v; want both", err)
	}
}

func TestKill(t *testing.T) {
	c, ctx := newProcesses(t)
	start(t, c, "killed", "echo; exec tail -f /dev/null").Kill()
	if err := ctx.Err(); err != nil {
		t.Errorf("Failed got %v; want nothing", context.Cause(ctx))
	}
}

func TestSignal(t *testing.T) {
	c, ctx := newProcesses(t)
	p := start(t, c, "signalled", `trap "exit 0" USR1; echo; while :; do :; done`)
	p.Expect()
	if err := p.Signal(syscall.SIGUSR1); err != nil {
		t.Error(err)
	}
	<-p.Done()
	if err := p.Signal(syscall.SIGUSR1); err == nil || !strings.Contains(err.Error(), "to signalled: ") {
		t.Errorf("after its end: %v; want an error with its name", err)
	}
	if err := ctx.Err(); err != nil {
		t.Errorf("Failed got %v; want nothing", context.Cause(ctx))
	}
}

func TestRunTellsWhatWasPrinted(t *testing.T) {
	c, _ := newProcesses(t)
	c.Env = []string{"WORD=yes"}
	if out, err := c.Run(t.Context(), here, "/bin/sh", "-c", "echo $WORD"); err != nil || out != "yes\n" {
		t.Errorf("printed %q, %v; want yes", out, err)
	}
	if _, err := c.Run(t.Context(), here, "/bin/sh", "-c", "echo >&2 the reason; exit 6"); err == nil || !strings.Contains(err.Error(), "exit status 6: the reason") {
		t.Errorf("a failing program: %v; want its status and its output", err)
	}
}

func TestStartKubernetes(t *testing.T) {
	c, ctx := newProcesses(t)
	program := filepath.Join(t.TempDir(), "kubelab")
	write := func(script string) {
		if err := os.WriteFile(program, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write(`echo "kubelab: ready server=https://$2 kubeconfig=/k/$1"; exec tail -f /dev/null`)
	got, err := c.StartKubernetes(ctx, here, program, "10.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"https://10.0.0.1", "/k/up"}, []string{got.Server, got.Kubeconfig}); diff != "" {
		t.Errorf("server and kubeconfig (-want +got):\n%s", diff)
	}
	got.Process.Kill()
	if err := ctx.Err(); err != nil {
		t.Errorf("killed: Failed got %v; want nothing", context.Cause(ctx))
	}
	write("echo >&2 no room; exit 1")
	if _, err := c.StartKubernetes(ctx, here, program); err == nil || !strings.Contains(err.Error(), "no room") {
		t.Errorf("one that fails: %v; want its log", err)
	}
}

func TestMissingPrograms(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"there": 0o700, "no-program": 0o600} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if code := Refuse("demo", "the demo", MissingPrograms(dir, "there", "no-program", "absent"), &out); code != 3 {
		t.Errorf("exit code %d; want 3", code)
	}
	want := "demo: this machine lacks what the demo needs; nothing was done:\n" +
		"  - the program no-program in DIR: make bin/no-program, or name its directory with --bin\n" +
		"  - the program absent in DIR: make bin/absent, or name its directory with --bin\n"
	if diff := cmp.Diff(want, strings.ReplaceAll(out.String(), dir, "DIR")); diff != "" {
		t.Errorf("printed (-want +got):\n%s", diff)
	}
}
