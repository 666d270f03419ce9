package main

import (
	"fmt"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// saveStdio returns the program's standard output and error in file descriptors that a
// redirection does not change.
func saveStdio() (stdio, error) {
	var saved [2]*os.File
	for i, file := range []*os.File{os.Stdout, os.Stderr} {
		fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return stdio{}, fmt.Errorf("saving %s: %w", file.Name(), err)
		}
		saved[i] = os.NewFile(uintptr(fd), file.Name())
	}
	return stdio{stdout: saved[0], stderr: saved[1]}, nil
}

// redirectOutput sends the standard output and error of the process to a log file, after
// the log of a resumed kubelab. The components log through several libraries and some
// print, so the file descriptors are changed. Messages for the user still go to stderr: a
// crash, and a component that exits on its own.
func redirectOutput(path string, stderr *os.File) error {
	log, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("log: %w", err)
	}
	defer log.Close()
	for _, fd := range []int{1, 2} {
		if err := unix.Dup3(int(log.Fd()), fd, 0); err != nil {
			return fmt.Errorf("redirecting output to %s: %w", path, err)
		}
	}
	if err := debug.SetCrashOutput(stderr, debug.CrashOptions{}); err != nil {
		return fmt.Errorf("setting the crash output: %w", err)
	}
	klog.OsExit = func(code int) {
		_, _ = fmt.Fprintf(stderr, "kubelab: a component ended the process with code %d\nlog: %s\n", code, path)
		os.Exit(code)
	}
	return nil
}
