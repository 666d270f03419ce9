package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// termTimeout is how long a kubelab may take to end by itself; it needs less than a
// second.
const termTimeout = 10 * time.Second

func parseDown(args []string) (string, error) {
	flags := newFlags("kubelab down")
	dir := flags.String("dir", "", "")
	if err := flags.Parse(args); err != nil {
		return "", parseError(err)
	}
	if *dir == "" || flags.NArg() > 0 {
		return "", fmt.Errorf("%w: down takes --dir DIR and nothing else", errUsage)
	}
	return *dir, nil
}

// down ends the kubelab of a directory, if one runs, and removes the directory. A missing
// directory is success. A directory of another program is an error and stays as it is.
func down(ctx context.Context, path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("--dir: %w", err)
	}
	for ctx.Err() == nil {
		ours, err := isLabDir(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !ours {
			return nil
		}
		if err != nil {
			return fmt.Errorf("--dir: %w", err)
		}
		again, err := endAndRemove(path)
		if err != nil || !again {
			return err
		}
	}
	return ctx.Err()
}

// endAndRemove ends the holder of a data directory and removes the directory. again is
// true if another process interfered, and it has to be called again.
func endAndRemove(path string) (again bool, err error) {
	dir, err := seize(path, unix.SIGTERM, unix.SIGKILL)
	if errors.Is(err, errVanished) {
		return true, nil // the holder removed it itself
	}
	if err != nil {
		return false, err
	}
	return false, dir.remove()
}

// endHolder ends the process that holds the lock, by the first of the signals that works.
func endHolder(lock *os.File, signals ...unix.Signal) error {
	pid, err := holder(lock)
	if err != nil || pid == 0 {
		return err
	}
	proc, err := watchProcess(pid)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer proc.close()
	// If it still holds the lock now, the handle is the holder's and not that of a later
	// process with its ID.
	if still, err := holder(lock); err != nil || still != pid {
		return err
	}
	for _, sig := range signals {
		if err := proc.signal(sig); err != nil {
			return err
		}
		if ended, err := proc.ended(termTimeout); err != nil || ended {
			return err
		}
	}
	return fmt.Errorf("process %d did not end", pid)
}
