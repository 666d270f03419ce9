package cluster

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// lockMode is whether others may hold a lock at the same time.
type lockMode int

const (
	shared    lockMode = unix.LOCK_SH
	exclusive lockMode = unix.LOCK_EX
)

// lockFile waits for a lock on an existing file, which it neither writes nor changes.
// Each call has a lock of its own, also in one process. unlock releases the lock; the end
// of the process does too.
func lockFile(path string, mode lockMode) (unlock func(), err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(file.Fd()), int(mode))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), file.Close())
		}
		return func() { _ = file.Close() }, nil
	}
}
