package thin

import (
	"bytes"
	"syscall"
	"unsafe"
)

const (
	clockMonotonic = 1  // clock_gettime(2)
	prGetName      = 16 // prctl(2)
)

// Now is the time of the monotonic clock, in milliseconds.
func Now() int64 {
	var ts syscall.Timespec
	// It fails for no clock that exists.
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&ts)), 0)
	return ts.Nano() / 1e6
}

// Sleep passes a number of milliseconds.
func Sleep(ms int64) {
	left := syscall.NsecToTimespec(ms * 1e6)
	for syscall.Nanosleep(&left, &left) == syscall.EINTR {
		continue
	}
}

// Program is the name under which the process was executed, without a directory, as
// far as the kernel keeps it: the first 15 bytes.
func Program() string {
	var name [16]byte
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prGetName, uintptr(unsafe.Pointer(&name)), 0)
	n := bytes.IndexByte(name[:], 0)
	return string(name[:max(n, 0)])
}
