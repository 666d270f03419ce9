package link

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// dumpTries bounds how often Dump reads a list that was interrupted because links came
// and went while the kernel wrote it.
const dumpTries = 10

// Dump reads a list until the kernel reports it as complete. what names the list in an
// error. Errors: netlink.ErrDumpInterrupted after dumpTries attempts.
func Dump[T any](ctx context.Context, what string, list func() ([]T, error)) ([]T, error) {
	for range dumpTries {
		all, err := list()
		if err == nil {
			return all, nil
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
	}
	return nil, fmt.Errorf("%s: interrupted by changes %d times: %w", what, dumpTries, netlink.ErrDumpInterrupted)
}
