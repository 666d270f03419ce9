package cluster

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Backup copies the data of etcd into a directory that does not exist yet. It is only for the
// control plane of Exclusive or Own.
func (c *Cluster) Backup(dir string) error {
	return c.holding(func(_ *os.File, pid int) error {
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			return err
		}
		return errors.Join(os.CopyFS(dir, os.DirFS(c.etcd())), unix.Kill(pid, unix.SIGCONT))
	})
}

// Restore kills the control plane, puts etcd back to a backup, and returns when the control
// plane is ready again at the same address. The revision is that of the backup: end all
// programs with caches before, and start them after it. It is only for the control plane of
// Exclusive or Own.
func (c *Cluster) Restore(dir string) error {
	err := c.holding(func(lock *os.File, pid int) error {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			return err
		}
		// The kernel releases the lock at the end of the process.
		if err := unix.FcntlFlock(lock.Fd(), unix.F_SETLKW, &unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}); err != nil {
			return err
		}
		return errors.Join(os.RemoveAll(c.etcd()), os.CopyFS(c.etcd(), os.DirFS(dir)))
	})
	if err != nil {
		return fmt.Errorf("restore etcd: %w", err)
	}
	return c.lab.start("--resume")
}

func (c *Cluster) etcd() string { return filepath.Join(c.lab.dir, "etcd") }

// holding calls do with the process of the control plane and its lock file.
func (c *Cluster) holding(do func(lock *os.File, pid int) error) error {
	if c.lab.owner != os.Getpid() {
		return errNotAlone
	}
	lock, err := os.OpenFile(filepath.Join(c.lab.dir, "kubelab.lock"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	held := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	if err := unix.FcntlFlock(lock.Fd(), unix.F_GETLK, &held); err != nil {
		return err
	}
	if held.Type == unix.F_UNLCK || held.Pid <= 0 {
		return fmt.Errorf("no process has the lock %s", lock.Name())
	}
	return do(lock, int(held.Pid))
}
