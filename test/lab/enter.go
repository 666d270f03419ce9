package lab

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/netlab"
)

// host is the part of the machine's state that a program could change.
type host struct {
	netlab.State
	files []string
}

// readHost reads the state of the machine, with the files of some patterns.
func readHost(patterns []string) (host, error) {
	var h host
	ns, err := netlab.Current()
	if err != nil {
		return h, err
	}
	defer ns.Close()
	if h.State, err = ns.State(); err != nil {
		return h, fmt.Errorf("look at this machine: %w", err)
	}
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return h, err
		}
		h.files = append(h.files, files...)
	}
	return h, nil
}

// Enter runs the inner program with a plan, checks that it left nothing on the machine, and decodes
// its result, unless that is nil. Only a program of the laboratory makes files of the patterns.
// Changes by others are mentioned in out.
func Enter(work harness.Work, plan, result any, out io.Writer, patterns ...string) error {
	before, err := readHost(patterns)
	if err != nil {
		return err
	}
	err = work.Enter(plan, out)
	if leftErr := before.compare(work, out, patterns); leftErr != nil {
		err = errors.Join(err, leftErr)
	}
	if err != nil || result == nil {
		return err
	}
	return work.ReadResult(result)
}

// compare returns an error if anything of a run is on the machine now.
func (h host) compare(work harness.Work, out io.Writer, patterns []string) error {
	after, err := readHost(patterns)
	if err != nil {
		return err
	}
	left, err := work.Left()
	if err != nil {
		return err
	}
	var foreign []string
	for _, item := range after.Since(h.State).All() {
		if isOurs(item) {
			left = append(left, item)
		} else {
			foreign = append(foreign, item)
		}
	}
	for _, file := range after.files {
		if !slices.Contains(h.files, file) {
			left = append(left, "file "+file)
		}
	}
	for _, item := range h.Since(after.State).All() {
		foreign = append(foreign, "(gone) "+item)
	}
	if len(foreign) > 0 {
		_, _ = fmt.Fprintf(out, "note: something else changed on this machine meanwhile: %s\n", strings.Join(foreign, ", "))
	}
	if len(left) > 0 {
		return fmt.Errorf("left on this machine: %s", strings.Join(left, ", "))
	}
	return nil
}

// isOurs reports whether Fairlead, kube-proxy or the laboratory gives names of this form.
func isOurs(item string) bool {
	_, name, _ := strings.Cut(item, " ")
	for _, prefix := range []string{netlab.BridgeName, netlab.PortPrefix, "fl"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return strings.Contains(item, "fairlead") || strings.Contains(item, "kube-proxy") || strings.Contains(item, "dev "+netlab.BridgeName) || strings.Contains(item, "dev flp")
}
