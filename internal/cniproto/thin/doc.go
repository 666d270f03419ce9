// Package thin is what the CNI plugin asks of the operating system. The packages os
// and time would do, and take longer to initialize before main, on every call, than
// all that the plugin does with them.
package thin

// pathError is the error of a system call, with what it was for. It is written as
// os writes its own.
type pathError struct {
	op, path string
	errno    error
}

// Error is part of error.
func (e *pathError) Error() string { return e.op + " " + e.path + ": " + e.errno.Error() }

// Unwrap lets errors.Is find the syscall.Errno.
func (e *pathError) Unwrap() error { return e.errno }

func failed(op, path string, errno error) error {
	if errno == nil {
		return nil
	}
	return &pathError{op, path, errno}
}
