package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/lab"
	"fairlead.dev/fairlead/test/netlab"
)

// place is the directory of a cluster that stays, <bin>/up. It has a lock that the keeper
// holds, and the files that a user needs.
type place string

func (s settings) place() place { return place(filepath.Join(s.Bin, "up")) }

func (p place) path(name string) string { return filepath.Join(string(p), name) }

// keeper is the process that runs a cluster that stays, as it is in the file keeper.json.
type keeper struct {
	PID  int
	Work harness.Work
}

// readyLine begins the line that is printed when the cluster is ready.
const readyLine = "demo: UP"

// progressFile is the descriptor of the keeper to which it writes its progress.
const progressFile = 3

// up starts a keeper, shows its progress until the cluster is ready, and returns the exit
// code. Ctrl-C ends the keeper too.
func (s settings) up(stdout, stderr io.Writer) int {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	cmd, progress, err := s.startKeeper()
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "demo: FAILED: %v\n", err)
		return 1
	}
	defer func() { _ = progress.Close() }()
	ready := make(chan bool, 1)
	go func() {
		for lines := bufio.NewScanner(progress); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), readyLine) {
				ready <- true
				return
			}
			_, _ = fmt.Fprintln(stdout, lines.Text())
		}
		ready <- false
	}()
	for {
		select {
		case received := <-signals:
			_ = cmd.Process.Signal(received)
		case isUp := <-ready:
			if isUp {
				s.describe(stdout)
				return 0
			}
			_ = cmd.Wait() // the exit status has it
			return cmd.ProcessState.ExitCode()
		}
	}
}

// startKeeper starts this program again as keeper, in a session of its own. The file has
// the lines of its progress, and its end.
func (s settings) startKeeper() (*exec.Cmd, *os.File, error) {
	if err := os.MkdirAll(string(s.place()), 0o700); err != nil {
		return nil, nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, nil, fmt.Errorf("find this program's own executable: %w", err)
	}
	log, err := os.OpenFile(s.place().path("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = log.Close() }()
	progress, writer, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = writer.Close() }()
	cmd := exec.Command(self, verbKeep, "--nodes", fmt.Sprint(s.Nodes), "--bin", s.Bin, fmt.Sprintf("--openstack=%t", s.OpenStack))
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{writer}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("start the keeper of the cluster: %w", err), progress.Close())
	}
	return cmd, progress, nil
}

// describe prints the next steps.
func (s settings) describe(out io.Writer) {
	dir := string(s.place())
	_, _ = fmt.Fprintf(out, `
The cluster runs until make down. In this shell:

    export KUBECONFIG=%[1]s/kubeconfig PATH=%[1]s:$PATH
    kubectl get nodes
    fairlead status
    shell node-1              # a shell on a node, with its links and processes
    shell default/web-0       # and in a pod, once there is one

%[2]s
`, dir, s.whatToTry())
}

func (s settings) whatToTry() string {
	if s.OpenStack {
		return "Neutron and Open vSwitch are stand-ins. docs/user/tour-openstack.md shows what to try."
	}
	return "docs/user/tour.md shows what to try, in a quarter of an hour."
}

// besideTheLog is where the keeper prints: the log, and the user's terminal while up is
// there to show it.
type besideTheLog struct{ log, terminal io.Writer }

func (b besideTheLog) Write(line []byte) (int, error) {
	_, _ = b.terminal.Write(line) // nobody reads it once up has ended
	return b.log.Write(line)
}

// keep runs a cluster until this process is asked to end, and returns the exit code.
func (s settings) keep() int {
	progress := os.NewFile(progressFile, "progress")
	syscall.CloseOnExec(progressFile)
	out := besideTheLog{log: os.Stdout, terminal: progress}
	err := s.keepUp(out)
	if err == nil || err == harness.ErrInterrupted { //nolint:errorlint // joined with another error it is not clean
		_, _ = fmt.Fprintln(out, "demo: DOWN leaked=0")
		return 0
	}
	_, _ = fmt.Fprintf(out, "demo: FAILED: %v\n", err)
	return 1
}

func (s settings) keepUp(out io.Writer) (err error) {
	unlock, err := s.place().lock()
	if err != nil {
		return err
	}
	defer unlock()
	work, err := harness.NewWork("demo")
	if err != nil {
		return err
	}
	defer func() { err = work.Close(err, false, out) }()
	if err := s.place().furnish(keeper{PID: os.Getpid(), Work: work}, s.Bin); err != nil {
		return err
	}
	p := plan{settings: s, Stay: true, ID: newID(), Start: time.Now(), Work: work, IPv4Only: !netlab.HasIPv6()}
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for requests to the API server: %w", err)
	}
	p.Address = listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_ = netlab.Forward(ctx, listener, func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", p.apiSocket())
		})
	}()
	return lab.Enter(work, p, nil, out, podNamespaces)
}

var errRuns = errors.New("a cluster of this checkout runs already: make down ends it")

// lock returns errRuns if a keeper runs.
func (p place) lock() (unlock func(), err error) {
	file, err := os.OpenFile(p.path("lock"), os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errRuns
		}
		return nil, fmt.Errorf("lock %s: %w", file.Name(), err)
	}
	return func() { _ = file.Close() }, nil
}

// furnish writes the files that a user and the other commands need.
func (p place) furnish(k keeper, bin string) error {
	raw, err := json.Marshal(k)
	if err != nil {
		return err
	}
	errs := []error{os.WriteFile(p.path("keeper.json"), raw, 0o600)}
	for name, command := range map[string]string{"kubectl": "kubelab kubectl", "shell": "demo shell", "neutron": "demo neutron", "fairlead": "fairlead"} {
		script := fmt.Sprintf("#!/bin/sh\nexec %s/%s \"$@\"\n", bin, command)
		errs = append(errs, os.WriteFile(p.path(name), []byte(script), 0o700))
	}
	if err := os.Remove(p.path("kubeconfig")); !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	errs = append(errs, os.Symlink(k.Work.Path("kubeconfig"), p.path("kubeconfig")))
	return errors.Join(errs...)
}
