package link

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// dumpTries bounds how often a list is read again because links came and went
// while the kernel was writing it.
const dumpTries = 10

// Dump reads a list until the kernel says that it is complete.
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
