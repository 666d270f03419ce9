package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fairlead.dev/fairlead/test/harness"
)

const (
	// suiteDir has Kubernetes' own tests and the programs of their images, among the
	// programs. The report is written there.
	suiteDir = "k8s-e2e"
	// suiteFocus are the tests that an installation has to pass to be called conformant, of
	// the network.
	suiteFocus = `\[sig-network\].*\[Conformance\]`
	// suiteSkip are tests of parts that the cluster does not have, those that break it, and one
	// that reads the output of a later iperf than Debian has.
	suiteSkip = `NetworkPolicy|Netpol|\[Slow\]|\[Disruptive\]|\[Serial\]|LoadBalancer|SCTP|sctp|Internet connection|iperf2`
	// suiteTime bounds all tests of one run.
	suiteTime = time.Hour
	// suiteProcesses run tests at the same time.
	suiteProcesses = 2
)

// suitePrograms are the programs in suiteDir.
var suitePrograms = []string{"e2e.test", "ginkgo", "agnhost", "coredns", "regression-issue-74839"}

// dnsAddress is the address of the Service kube-dns in coredns.yaml.
const dnsAddress = "10.96.0.10"

//go:embed coredns.yaml
var coreDNS []byte

// clusterDNS runs CoreDNS as pods, as clusters do. The control plane gets routes to pods and
// Services, because the API server calls webhooks there.
func (w *testbed) clusterDNS(ctx context.Context) error {
	for _, target := range append(words(w.ranges), "10.96.0.0/16", "fd00:96::/108") {
		via := w.nodes[0].addresses()[0]
		if strings.Contains(target, ":") {
			via = w.nodes[0].addresses()[1]
		}
		if _, err := w.Programs.Run(ctx, w.Net.Switch.Do, "ip", "route", "add", target, "via", via.String()); err != nil {
			return err
		}
	}
	file := filepath.Join(w.Tmpfs(), "coredns.yaml")
	if err := os.WriteFile(file, coreDNS, 0o600); err != nil {
		return err
	}
	if err := w.Kubectl(ctx, "apply", "--server-side", "-f", file); err != nil {
		return err
	}
	return w.Kubectl(ctx, "-n", "kube-system", "rollout", "status", "--timeout", stepTimeout.String(), "deploy/coredns")
}

// conformance runs Kubernetes' own tests as they are.
func (w *testbed) conformance(ctx context.Context) error {
	home := filepath.Join(w.Tmpfs(), "suite")
	if err := os.MkdirAll(home, 0o755); err != nil {
		return err
	}
	kubectl := fmt.Sprintf("#!/bin/sh\nexec %s kubectl \"$@\"\n", filepath.Join(w.programs(), "kubelab"))
	if err := os.WriteFile(filepath.Join(home, "kubectl"), []byte(kubectl), 0o755); err != nil {
		return err
	}
	dir, report := filepath.Join(w.programs(), suiteDir), filepath.Join(home, "junit.xml")
	p, err := w.Programs.Command("kubernetes-tests", filepath.Join(dir, "ginkgo"), "run",
		fmt.Sprint("--procs=", suiteProcesses), "--no-color", "--timeout="+suiteTime.String(), "--focus="+w.Focus, "--skip="+w.Skip,
		"--output-interceptor-mode=none", "--silence-skips", "--output-dir="+home, "--junit-report="+filepath.Base(report), filepath.Join(dir, "e2e.test"), "--",
		"--provider=skeleton", "--kubeconfig="+w.Admin, fmt.Sprint("--num-nodes=", nodeCount), "--disable-log-dump", "--dump-logs-on-failure=false")
	if err != nil {
		return err
	}
	p.Cmd.Dir = home
	p.Cmd.Env = append(slices.Clone(p.Cmd.Env), "HOME="+home, "KUBECONFIG="+w.Admin, "PATH="+home+":"+os.Getenv("PATH"))
	// Its own file is closed here once it runs.
	log, err := os.OpenFile(p.Log, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer log.Close()
	p.Cmd.Stdout = io.MultiWriter(log, &suiteProgress{say: w.Say})
	p.Expect() // it ends by itself
	if err := w.Programs.Start(w.Net.Switch.Do, p); err != nil {
		return err
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
		p.Kill()
		return context.Cause(ctx)
	}
	return w.conformanceResult(p, report)
}

// conformanceResult reads the report, keeps it beside the tests and prints the numbers.
func (w *testbed) conformanceResult(p *harness.Process, report string) error {
	raw, err := os.ReadFile(report)
	if err != nil {
		return fmt.Errorf("the tests ended without a report: %w; their log is %s", err, p.Log)
	}
	passed, failed, err := readReport(raw)
	if err != nil {
		return fmt.Errorf("%s: %w", report, err)
	}
	kept := filepath.Join(w.programs(), suiteDir, "junit.xml")
	if err := os.WriteFile(kept, raw, 0o644); err != nil {
		return err
	}
	w.Say("the report is %s", filepath.Join(w.plan.Bin, suiteDir, filepath.Base(kept)))
	if len(failed) > 0 || !p.Cmd.ProcessState.Success() {
		return fmt.Errorf("%d tests failed of %d (%v): %s; their log is %s", len(failed), passed+len(failed), p.Cmd.ProcessState, strings.Join(failed, "; "), p.Log)
	}
	if passed == 0 {
		return fmt.Errorf("no test is chosen by --focus %q and --skip %q", w.Focus, w.Skip)
	}
	_, err = fmt.Fprintf(w.Out, "kubernetes: OK passed=%d failed=0\n", passed)
	return err
}

// suiteProgress says how many tests have ended, every half minute at most.
type suiteProgress struct {
	say   func(format string, args ...any)
	ended int
	said  time.Time
}

func (s *suiteProgress) Write(text []byte) (int, error) {
	s.ended += bytes.Count(text, []byte("•")) // Ginkgo's mark of a test
	if now := time.Now(); now.Sub(s.said) > 6*progressInterval {
		s.said = now
		s.say("  %d tests have ended", s.ended)
	}
	return len(text), nil
}

// readReport returns the number of tests that passed, and the names of those that failed, of
// a report of Ginkgo in JUnit's format. Tests that were not chosen are skipped there.
func readReport(raw []byte) (passed int, failed []string, err error) {
	var report struct {
		Suites []struct {
			Cases []struct {
				Name   string `xml:"name,attr"`
				Status string `xml:"status,attr"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(raw, &report); err != nil {
		return 0, nil, err
	}
	cases := 0
	for _, suite := range report.Suites {
		for _, c := range suite.Cases {
			cases++
			switch {
			case c.Status == "skipped" || c.Status == "pending":
			case c.Status != "passed":
				failed = append(failed, c.Name)
			case strings.HasPrefix(c.Name, "[It]"): // others prepare and clean up
				passed++
			}
		}
	}
	if cases == 0 {
		return 0, nil, errors.New("it has no test")
	}
	return passed, failed, nil
}
