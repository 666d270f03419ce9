package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/node/ledger"
)

// lockFile is the lock in the daemon's state directory.
const lockFile = "lock"

// Lock is held by the one daemon that works with a state directory.
type Lock struct{ file *os.File }

// ErrLocked says that another process holds the lock.
var ErrLocked = errors.New("another fairlead-node works with this state directory")

// TryLock takes the lock of a state directory, which it makes if need be. It is
// ErrLocked when another process has it.
func TryLock(stateDir string) (*Lock, error) {
	f, err := openLock(stateDir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: %w", stateDir, ErrLocked)
		}
		return nil, fmt.Errorf("lock %s: %w", stateDir, err)
	}
	return &Lock{file: f}, nil
}

// WaitLock waits until the lock of a state directory is free: the daemon
// before, in an upgrade, finishes what it is doing.
func WaitLock(stateDir string) (*Lock, error) {
	f, err := openLock(stateDir)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err == nil {
			return &Lock{file: f}, nil
		}
		if !errors.Is(err, unix.EINTR) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", stateDir, err)
		}
	}
}

func openLock(stateDir string) (*os.File, error) {
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(stateDir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the state directory: %w", err)
	}
	return f, nil
}

// Unlock lets the next one work.
func (l *Lock) Unlock() error { return l.file.Close() }

// RemoveState removes everything that a daemon keeps in its state directory and
// beside its socket, and returns the paths that were removed. The caller holds
// the lock.
func RemoveState(stateDir, socket string) (removed []string, err error) {
	beside := filepath.Dir(socket)
	for _, dir := range []string{filepath.Join(stateDir, ledger.RecordsDir), filepath.Join(stateDir, ledger.AddressesDir), filepath.Join(beside, cniproto.SpoolDir)} {
		if _, e := os.Stat(dir); errors.Is(e, fs.ErrNotExist) {
			continue
		}
		if e := os.RemoveAll(dir); e != nil {
			err = errors.Join(err, e)
			continue
		}
		removed = append(removed, dir)
	}
	files, e := removeFiles(socket, filepath.Join(beside, cniproto.HeartbeatFile), filepath.Join(stateDir, lockFile))
	removed, err = append(removed, files...), errors.Join(err, e)
	// Others may keep something there.
	for _, dir := range []string{beside, stateDir} {
		if os.Remove(dir) == nil {
			removed = append(removed, dir)
		}
	}
	return removed, err
}
