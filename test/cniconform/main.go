// The cniconform program drives any CNI plugin as a container runtime does, by its environment and standard input, and
// reports verb by verb what it does of what the CNI specification 1.1.0 says.
//
//	cniconform --plugin /opt/cni/bin/bridge --config bridge.json --netns-dir /run/netns
//
// The configuration is what a plugin gets on its standard input, without cniVersion and prevResult. The plugin works in
// the network namespace that cniconform is started in, and the sandboxes are network namespaces that it makes: it needs
// root. What the specification says with MUST, or cannot be done without, is told from what it recommends; the exit
// status is 1 when something of the former is not done, and 2 when nothing could be tried.
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

// parse reads the command line.
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

// level is how much the specification asks for something.
type level string

const (
	must   level = "must"
	should level = "should"
)

// finding is one thing that was looked at.
type finding struct {
	verb, what string
	level      level
	section    string // of the specification
	err        error  // nil when it is as it has to be
}

// print writes the findings and returns how many of level must are bad.
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
