package main

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// errOwnerEnded is why a control plane with an owner ends.
var errOwnerEnded = errors.New("the owner ended")

// process is a handle of one process, which no later process with the same ID can take over.
type process struct {
	fd int
}

// watchProcess opens a handle of a process. The error is unix.ESRCH when there is none with that ID.
func watchProcess(pid int) (*process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	return &process{fd: fd}, nil
}

// wait returns when the process has ended: errOwnerEnded, or why it cannot be watched.
func (p *process) wait() error {
	if _, err := p.ended(-1); err != nil {
		return err
	}
	return errOwnerEnded
}

// ended waits for the end of the process, at most for timeout (for ever when negative), and says whether it came.
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

// signal sends a signal to the process. One that has ended already is no error.
func (p *process) signal(sig unix.Signal) error {
	if err := unix.PidfdSendSignal(p.fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("sending %v: %w", sig, err)
	}
	return nil
}

func (p *process) close() { _ = unix.Close(p.fd) }
