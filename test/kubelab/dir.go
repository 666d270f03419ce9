package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// lockFile marks a data directory. Its process holds a record lock on it, and the kernel
// returns the holder's ID. Unlike a number in a file, this cannot be a later process with
// the same ID.
const lockFile = "kubelab.lock"

// dataDir is a data directory that this process holds.
type dataDir struct {
	path string // absolute
	lock *os.File
	ours bool // kubelab made the directory, and removes it at the end
}

// resumeDir takes over the unchanged directory of a kubelab. It kills the process that
// holds the directory, if there is one.
func resumeDir(path string) (*dataDir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("--dir: %w", err)
	}
	dir, err := seize(path, unix.SIGKILL)
	if errors.Is(err, errVanished) {
		return nil, fmt.Errorf("--resume: no kubelab left anything in %s; start one without --resume", path)
	}
	if err != nil {
		return nil, fmt.Errorf("--dir: %w", err)
	}
	return dir, nil
}

// seize takes over the directory of a kubelab. It ends the process that holds the
// directory, if there is one, by the first of the signals that works. It fails with
// errVanished if the lock file does not exist, or is removed before it can be locked.
func seize(path string, signals ...unix.Signal) (*dataDir, error) {
	lock, err := os.OpenFile(filepath.Join(path, lockFile), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errVanished
	}
	if err != nil {
		return nil, err
	}
	if err := endHolder(lock, signals...); err != nil {
		lock.Close()
		return nil, fmt.Errorf("ending the kubelab of %s: %w", path, err)
	}
	dir := &dataDir{path: path, lock: lock, ours: true}
	if err := dir.acquire(); err != nil {
		lock.Close()
		return nil, err
	}
	return dir, nil
}

// claimDir takes a directory for this process: a new one, an empty one, or the remains of
// a killed kubelab, which it empties. It leaves any other path alone.
func claimDir(path string) (*dataDir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("--dir: %w", err)
	}
	for {
		dir, err := tryClaim(path)
		if errors.Is(err, errVanished) {
			continue // its last holder has just removed it
		}
		if err != nil {
			return nil, fmt.Errorf("--dir: %w", err)
		}
		return dir, nil
	}
}

// errVanished means that the lock file was removed before it could be locked.
var errVanished = errors.New("the directory was removed meanwhile")

func tryClaim(path string) (*dataDir, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	dir := &dataDir{path: path}
	switch err := os.Mkdir(path, 0o700); {
	case err == nil:
		dir.ours = true
	case !errors.Is(err, fs.ErrExist):
		return nil, err
	default:
		if dir.ours, err = isLabDir(path); err != nil {
			return nil, err
		}
	}
	lock, err := os.OpenFile(dir.file(lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errVanished
	}
	if err != nil {
		return nil, err
	}
	dir.lock = lock
	if err := dir.acquire(); err != nil {
		lock.Close()
		return nil, err
	}
	if err := dir.empty(); err != nil {
		lock.Close()
		return nil, fmt.Errorf("removing what an earlier kubelab left: %w", err)
	}
	return dir, nil
}

// isLabDir reports whether an existing directory belongs to a kubelab, running or not. An
// empty directory does not. Any other directory is an error, because kubelab removes the
// contents of its directory.
func isLabDir(path string) (bool, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return false, err
	}
	for _, entry := range entries {
		if entry.Name() == lockFile {
			return true, nil
		}
	}
	if len(entries) > 0 {
		return false, fmt.Errorf("%s holds files that are not kubelab's (%s, for one); name a new or an empty directory", path, entries[0].Name())
	}
	return false, nil
}

func (d *dataDir) file(name string) string { return filepath.Join(d.path, name) }

// acquire locks the directory for this process and checks that the locked file is the
// present lock file.
func (d *dataDir) acquire() error {
	whole := unix.Flock_t{Type: unix.F_WRLCK}
	err := unix.FcntlFlock(d.lock.Fd(), unix.F_SETLK, &whole)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		pid, err := holder(d.lock)
		if err != nil {
			return err
		}
		return fmt.Errorf("%s is in use by a running kubelab (process %d); end it with: kubelab down --dir %s", d.path, pid, d.path)
	}
	if err != nil {
		return fmt.Errorf("locking %s: %w", d.lock.Name(), err)
	}
	locked, err := d.lock.Stat()
	if err != nil {
		return err
	}
	present, err := os.Stat(d.lock.Name())
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(locked, present) {
		return errVanished
	}
	return err
}

// holder returns the ID of the process that holds the lock, or 0 if there is none.
func holder(lock *os.File) (int, error) {
	whole := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(lock.Fd(), unix.F_GETLK, &whole); err != nil {
		return 0, fmt.Errorf("asking who holds %s: %w", lock.Name(), err)
	}
	if whole.Type == unix.F_UNLCK {
		return 0, nil
	}
	if whole.Pid <= 0 {
		return 0, fmt.Errorf("%s is held by a process of another PID namespace; end it there", lock.Name())
	}
	return int(whole.Pid), nil
}

// empty removes everything from the directory but the lock file.
func (d *dataDir) empty() error {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		if entry.Name() != lockFile {
			errs = append(errs, os.RemoveAll(d.file(entry.Name())))
		}
	}
	return errors.Join(errs...)
}

// remove removes the files of kubelab and gives the directory up. The lock file is
// removed last, so that an interrupted removal leaves a directory that is still
// recognised.
func (d *dataDir) remove() error {
	defer d.lock.Close()
	if err := d.empty(); err != nil {
		return fmt.Errorf("removing %s: %w", d.path, err)
	}
	if err := os.Remove(d.file(lockFile)); err != nil {
		return err
	}
	if !d.ours {
		return nil
	}
	// Another kubelab may have just taken the directory; then it is no longer empty.
	if err := os.Remove(d.path); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
