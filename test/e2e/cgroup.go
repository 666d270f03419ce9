package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

// hierarchies returns the mount points of all control group hierarchies, of v1 and v2.
func hierarchies() ([]string, error) {
	raw, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, fmt.Errorf("look for control groups: %w", err)
	}
	var out []string
	for line := range strings.Lines(string(raw)) {
		// device, mount point, type, ...: proc(5)
		fields := strings.Fields(line)
		if len(fields) > 2 && (fields[2] == "cgroup" || fields[2] == "cgroup2") && strings.HasPrefix(fields[1], "/sys/fs/cgroup") {
			out = append(out, fields[1])
		}
	}
	if len(out) == 0 {
		return nil, errors.New("look for control groups: none are mounted below /sys/fs/cgroup")
	}
	return out, nil
}

// makeGroups creates a control group in every hierarchy, with the settings that a group
// needs before a process can enter it.
func makeGroups(group string) error {
	roots, err := hierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		dir := root
		for part := range strings.SplitSeq(group, "/") {
			if err := enterable(dir, filepath.Join(dir, part)); err != nil {
				return fmt.Errorf("make the control group %s: %w", group, err)
			}
			dir = filepath.Join(dir, part)
		}
	}
	return nil
}

func enterable(parent, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	// v1: a new cpuset is empty. v2: a controller has to be passed on.
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		content, err := os.ReadFile(filepath.Join(parent, name))
		if err == nil && len(bytes.TrimSpace(content)) > 0 {
			err = os.WriteFile(filepath.Join(dir, name), content, 0)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	controllers, err := os.ReadFile(filepath.Join(parent, "cgroup.controllers"))
	if err != nil {
		return nil // a hierarchy of v1
	}
	for name := range strings.FieldsSeq(string(controllers)) {
		if err := os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+"+name), 0); err != nil {
			return err
		}
	}
	return nil
}

// groupProcesses returns the processes in a control group and those below it.
func groupProcesses(group string) ([]int, error) {
	var pids []int
	err := walkGroups(group, func(dir string) error {
		raw, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		for field := range strings.FieldsSeq(string(raw)) {
			if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
		return ignoreGone(err)
	})
	slices.Sort(pids)
	return slices.Compact(pids), err
}

// walkGroups visits a control group in all hierarchies, the innermost first.
func walkGroups(group string, visit func(dir string) error) error {
	roots, err := hierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		var dirs []string
		err := filepath.WalkDir(filepath.Join(root, group), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				dirs = append(dirs, path)
			}
			return ignoreGone(err)
		})
		if err != nil {
			return err
		}
		for _, dir := range slices.Backward(dirs) {
			if err := visit(dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// ignoreGone drops the errors of a group that is removed meanwhile.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// removeGroups removes a control group and those below it, when the last of their killed
// processes is gone.
func removeGroups(ctx context.Context, group string) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 20*time.Second, true, func(context.Context) (bool, error) {
		last = walkGroups(group, func(dir string) error { return ignoreGone(unix.Rmdir(dir)) })
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("remove the control groups %s: %w", group, errors.Join(err, last))
	}
	return nil
}
