//go:build !linux

package probe

import (
	"errors"
	"syscall"
)

// dontFragment is missing where no pod runs.
func dontFragment(string, string, syscall.RawConn) error { return errors.ErrUnsupported }

// transparent is missing where no pod runs.
func transparent(string) func(string, string, syscall.RawConn) error {
	return func(string, string, syscall.RawConn) error { return errors.ErrUnsupported }
}
