package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// makeNetns creates a network namespace with its loopback link up and mounts it at a
// path, as containerd does.
func makeNetns(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make the directory of network namespaces: %w", err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return fmt.Errorf("make the mount point of a network namespace: %w", err)
	}
	if err := file.Close(); err != nil {
		return fmt.Errorf("make the mount point of a network namespace: %w", err)
	}
	done := make(chan error, 1)
	go func() {
		// The thread stays in the new namespace: it is not unlocked, so it ends with the
		// goroutine.
		runtime.LockOSThread()
		done <- unshareAndMount(path)
	}()
	if err := <-done; err != nil {
		return errors.Join(err, removeNetns(path))
	}
	return nil
}

func unshareAndMount(path string) error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make a network namespace: %w", err)
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink in the new namespace: %w", err)
	}
	defer handle.Close()
	lo, err := handle.LinkByIndex(1) // every new namespace has it
	if err != nil {
		return fmt.Errorf("find the loopback link: %w", err)
	}
	if err := handle.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set the loopback link up: %w", err)
	}
	if err := unix.Mount("/proc/thread-self/ns/net", path, "none", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount the network namespace at %s: %w", path, err)
	}
	return nil
}

// removeNetns removes a network namespace; a missing namespace is no error.
func removeNetns(path string) error {
	err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	// EINVAL means that the path is not a mount point, as after a reboot.
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount the network namespace %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the mount point of a network namespace: %w", err)
	}
	return nil
}

// isNetns reports whether a network namespace is mounted at a path.
func isNetns(path string) bool {
	var stat unix.Statfs_t
	return unix.Statfs(path, &stat) == nil && stat.Type == unix.NSFS_MAGIC
}
