// The cniconform program calls any CNI plugin as a container runtime does, by its
// environment and standard input. It reports, verb by verb, whether the plugin does what
// the CNI specification 1.1.0 demands.
//
//	cniconform --plugin /opt/cni/bin/bridge --config bridge.json --netns-dir /run/netns
//
// The configuration is the plugin's standard input, without cniVersion and prevResult.
// The plugin works in the network namespace in which cniconform is started, and the
// sandboxes are network namespaces that cniconform makes: it needs root. Demands (MUST,
// and everything that is needed for them) are distinguished from recommendations. The
// exit status is 1 if a demand is not met, and 2 if nothing could be tried.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
)

func main() {
	s, err := parse(os.Args[1:])
	failed := 0
	if err == nil {
		err = s.all()
	}
	if err == nil {
		failed, err = s.print(os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cniconform:", err)
		os.Exit(2)
	}
	if failed > 0 {
		os.Exit(1)
	}
}

// parse parses the command line.
func parse(args []string) (*session, error) {
	var s session
	var config string
	flags := flag.NewFlagSet("cniconform", flag.ContinueOnError)
	flags.StringVar(&s.plugin, "plugin", "", "path of the plugin")
	flags.StringVar(&config, "config", "", "path of its configuration, a JSON object")
	flags.StringVar(&s.args, "args", "", "CNI_ARGS")
	flags.StringVar(&s.ifname, "ifname", "eth0", "CNI_IFNAME")
	flags.StringVar(&s.cniPath, "cni-path", "", "CNI_PATH; the plugin's directory if empty")
	flags.StringVar(&s.netnsDir, "netns-dir", "/run/netns", "where network namespaces are mounted")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if s.plugin == "" || config == "" || flags.NArg() > 0 {
		return nil, fmt.Errorf("--plugin and --config are needed, and nothing but flags")
	}
	if s.cniPath == "" {
		s.cniPath = filepath.Dir(s.plugin)
	}
	raw, err := os.ReadFile(config)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(raw, &s.config); err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	return &s, nil
}

// level is how strongly the specification asks for something.
type level string

const (
	must   level = "must"
	should level = "should"
)

// finding is the result of one check.
type finding struct {
	verb, what string
	level      level
	section    string // of the specification
	err        error  // nil if the check passed
}

// print writes the findings and returns how many of level must failed.
func (s *session) print(out io.Writer) (failed int, err error) {
	var rows, sums bytes.Buffer
	good, all := map[level]int{}, map[level]int{}
	for _, f := range s.findings {
		all[f.level]++
		result := "FAILED"
		if f.err == nil {
			result = "ok"
			good[f.level]++
		}
		fmt.Fprintf(&rows, "%s\t%s\t%s\t%s (%s)\n", f.verb, f.level, result, f.what, f.section)
		if f.err != nil {
			fmt.Fprintf(&rows, "\t\t\t  %v\n", f.err)
		}
	}
	for _, l := range []level{must, should} {
		fmt.Fprintf(&sums, "%s: %d of %d\n", l, good[l], all[l])
	}
	failed = all[must] - good[must]
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if _, err := rows.WriteTo(table); err != nil {
		return failed, err
	}
	if err := table.Flush(); err != nil {
		return failed, err
	}
	_, err = sums.WriteTo(out)
	return failed, err
}
