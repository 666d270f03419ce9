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

// Lock is the lock of a state directory. Only the daemon that uses the directory holds it.
type Lock struct{ file *os.File }

// ErrLocked means that another process holds the lock.
var ErrLocked = errors.New("another fairlead-node works with this state directory")

// TryLock takes the lock of a state directory, which it creates if necessary; errors:
// ErrLocked if another process holds the lock.
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

// WaitLock waits for the lock of a state directory, which it creates if necessary. In an
// upgrade the previous daemon holds it until it has finished its requests.
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

// Unlock releases the lock.
func (l *Lock) Unlock() error { return l.file.Close() }

// RemoveState removes all files of a daemon in its state directory and beside its socket.
// It returns the paths that it removed. The caller holds the lock.
func RemoveState(stateDir, socket string) (removed []string, err error) {
	beside := filepath.Dir(socket)
	records := filepath.Join(stateDir, ledger.RecordsDir)
	for _, dir := range []string{records, ledger.Draft(records), filepath.Join(beside, cniproto.SpoolDir)} {
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
	// The directories stay if they have files of other programs.
	for _, dir := range []string{beside, stateDir} {
		if os.Remove(dir) == nil {
			removed = append(removed, dir)
		}
	}
	return removed, err
}
