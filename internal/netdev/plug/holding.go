package plug

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// namespaceDir is the directory in which container runtimes keep the network namespaces
// of sandboxes.
const namespaceDir = "/run/netns"

// Holding returns the path of a network namespace in which an interface has one of the
// addresses, "" if there is none. It serves sandboxes whose namespace and links are both
// unknown. It returns an error if a namespace may be hidden, since the search is no proof
// then.
func Holding(ctx context.Context, addrs []netip.Addr) (string, error) {
	return holding(ctx, namespaceDir, addrs)
}

func holding(ctx context.Context, dir string, addrs []netip.Addr) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", fmt.Errorf("looking for the network namespaces of sandboxes: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		found, err := holds(ctx, path, addrs)
		if errors.Is(err, fs.ErrNotExist) {
			continue // gone meanwhile
		}
		if err != nil {
			return "", fmt.Errorf("looking for %v in network namespaces: %w", addrs, err)
		}
		if found {
			return path, nil
		}
	}
	return "", nil
}

func holds(ctx context.Context, path string, addrs []netip.Addr) (bool, error) {
	ns, err := link.OpenAnyNamespace(path)
	if err != nil {
		return false, err
	}
	defer func() { _ = ns.Close() }()
	interfaces, err := Inspect(ctx, ns)
	if err != nil {
		return false, err
	}
	for _, i := range interfaces {
		if slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return slices.Contains(addrs, p.Addr()) }) {
			return true, nil
		}
	}
	return false, nil
}
