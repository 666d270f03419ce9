package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/test/netlab"
)

// place is a set of namespaces in which processes run.
type place struct {
	net *netlab.Namespace
	mnt *os.File // mount namespace; nil: the test's own
	// host is the name of the host; empty: the test's own.
	host string
}

// do runs fn inside, on a thread of its own.
func (p place) do(fn func() error) error {
	return p.net.Do(func() error {
		if p.mnt == nil {
			return fn()
		}
		// A thread that shares its root directory with others may not enter a mount
		// namespace.
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("leave the other threads: %w", err)
		}
		if err := unix.Setns(int(p.mnt.Fd()), unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("enter the mount namespace: %w", err)
		}
		if p.host != "" {
			if err := errors.Join(unix.Unshare(unix.CLONE_NEWUTS), unix.Sethostname([]byte(p.host))); err != nil {
				return fmt.Errorf("name the host %s: %w", p.host, err)
			}
		}
		return fn()
	})
}
