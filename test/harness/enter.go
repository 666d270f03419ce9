package harness

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
)

// ErrInterrupted means that the user interrupted the run, and that there was no other
// error.
var ErrInterrupted = errors.New("interrupted; everything is removed")

// Enter executes this program again in namespaces of its own, where its main calls
// Inside, and waits for its end. It passes plan as JSON, and writes the output of the
// inner program to out. It returns the error of the work inside.
//
// The first signal asks the inner program to end in order. The second ends it at once,
// with all programs that it started.
func (w Work) Enter(plan any, out io.Writer) error {
	if err := writeJSON(w.planFile(), plan); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program's own executable: %w", err)
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)

	// Pdeathsig follows the thread that starts the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command(self, initCommand, string(w))
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
		Pdeathsig:  syscall.SIGKILL,
		Setsid:     true, // Ctrl-C reaches only the outer program, which passes it on
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the inner program: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for asked := false; ; {
		select {
		case err := <-ended:
			return w.reason(err, asked)
		case received := <-signals:
			if asked {
				_ = cmd.Process.Kill()
				continue
			}
			asked = true
			_, _ = fmt.Fprintf(out, "\n%v: cleaning up; once more to end at once\n", received)
			_ = cmd.Process.Signal(syscall.SIGTERM)
		}
	}
}

// reason returns the error of the work, or the way in which the inner program ended. If
// it was asked to end and has no other error, it returns ErrInterrupted.
func (w Work) reason(err error, asked bool) error {
	if err == nil {
		return nil
	}
	reason, readErr := os.ReadFile(w.reasonFile())
	switch {
	case asked && (errors.Is(readErr, os.ErrNotExist) || string(reason) == ErrInterrupted.Error()):
		return ErrInterrupted
	case readErr != nil:
		return fmt.Errorf("the inner program: %w", err)
	}
	return errors.New(string(reason))
}
