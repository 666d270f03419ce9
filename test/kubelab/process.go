package main

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// errOwnerEnded is the reason of the end of a control plane whose owner has ended.
var errOwnerEnded = errors.New("the owner ended")

// process is a handle of one process. It never refers to a later process with the same
// ID.
type process struct {
	fd int
}

// watchProcess opens a handle of a process. The error is unix.ESRCH if there is no
// process with that ID.
func watchProcess(pid int) (*process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	return &process{fd: fd}, nil
}

// wait returns when the process has ended, with errOwnerEnded, or with the error that
// prevents watching it.
func (p *process) wait() error {
	if _, err := p.ended(-1); err != nil {
		return err
	}
	return errOwnerEnded
}

// ended waits for the end of the process, at most for timeout (for ever if negative), and
// reports whether it has ended.
func (p *process) ended(timeout time.Duration) (bool, error) {
	deadline := time.Now().Add(timeout)
	for {
		left := -1
		if timeout >= 0 {
			left = int(max(time.Until(deadline), 0).Milliseconds())
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}, left)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("waiting for a process: %w", err)
		}
		return n > 0, nil
	}
}

// signal sends a signal to the process. A process that has ended already is no error.
func (p *process) signal(sig unix.Signal) error {
	if err := unix.PidfdSendSignal(p.fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("sending %v: %w", sig, err)
	}
	return nil
}

func (p *process) close() { _ = unix.Close(p.fd) }
