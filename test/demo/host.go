package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"fairlead.dev/fairlead/test/netlab"
)

// host is the part of the machine's state that the demo could change.
type host struct {
	netlab.State
	Namespaces []string // the names in /run/netns
}

func readHost() (host, error) {
	var h host
	ns, err := netlab.Current()
	if err != nil {
		return h, err
	}
	defer ns.Close()
	if h.State, err = ns.State(); err != nil {
		return h, fmt.Errorf("look at this machine: %w", err)
	}
	entries, err := os.ReadDir("/run/netns")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return h, fmt.Errorf("look at this machine: %w", err)
	}
	for _, entry := range entries {
		h.Namespaces = append(h.Namespaces, entry.Name())
	}
	return h, nil
}

// checkHost returns an error if the demo left anything on the machine. It only mentions
// changes by others.
func checkHost(before host, p plan, stdout io.Writer) error {
	after, err := readHost()
	if err != nil {
		return err
	}
	var ours, foreign []string
	news := after.Since(before.State).All()
	for _, name := range after.Namespaces {
		if !slices.Contains(before.Namespaces, name) {
			news = append(news, "network namespace "+name)
		}
	}
	for _, item := range news {
		if isOurs(item) {
			ours = append(ours, item)
		} else {
			foreign = append(foreign, item)
		}
	}
	for _, item := range before.Since(after.State).All() {
		foreign = append(foreign, "(gone) "+item)
	}
	left, err := p.Left()
	if err != nil {
		return err
	}
	ours = append(ours, left...)
	if len(foreign) > 0 {
		_, _ = fmt.Fprintf(stdout, "note: something else changed on this machine meanwhile: %s\n", strings.Join(foreign, ", "))
	}
	if len(ours) > 0 {
		return fmt.Errorf("the demo left on this machine: %s", strings.Join(ours, ", "))
	}
	return nil
}

// isOurs reports whether Fairlead or the laboratory gives names of this form.
func isOurs(item string) bool {
	_, name, _ := strings.Cut(item, " ")
	for _, prefix := range []string{netlab.BridgeName, netlab.PortPrefix, "fairlead", "fl", "namespace podrunner-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return strings.Contains(item, "fairlead") || strings.Contains(item, "dev "+netlab.BridgeName)
}
