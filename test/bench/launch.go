package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/lab"
)

// launch is the program that the user starts. It returns the exit code: 0 if all was
// measured, 1 if anything failed, 2 for a wrong command line, 3 if the machine lacks
// something, 130 after Ctrl-C.
func launch(args []string, stdout, stderr io.Writer) int {
	p, err := parseFlags(args, stderr)
	if err != nil {
		return harness.WrongFlags("bench", err, stderr)
	}
	if lacks := preflight(p); len(lacks) > 0 {
		return harness.Refuse("bench", "the bench", lacks, stderr)
	}
	if err := measureAll(p, stdout); err != nil {
		return harness.Failed("bench", err, stderr)
	}
	return 0
}

// preflight returns the missing requirements of the machine, each with its remedy.
func preflight(p plan) []string {
	lacks := lab.LacksKernel(context.Background(), "make bench", true)
	if _, err := exec.LookPath("go"); err != nil {
		lacks = append(lacks, "Go in PATH, to build the programs to compare with: https://go.dev/dl/")
	}
	lacks = append(lacks, harness.MissingPrograms(p.Bin, "fairlead-controller", "fairlead-node", "fairlead-cni", "kubelab")...)
	if p.makes(deploy30Measurement()) {
		lacks = append(lacks, harness.MissingPrograms(p.Bin, e2ePrograms...)...)
	}
	if _, err := sourceDir(p); err != nil {
		lacks = append(lacks, err.Error())
	}
	return lacks
}

// sourceDir is the directory of the module that pins the reference plugins.
func sourceDir(p plan) (string, error) {
	var tried []string
	here, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for _, root := range []string{filepath.Dir(p.Bin), here} {
		dir := filepath.Join(root, "test", "bench", "reference")
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		tried = append(tried, dir)
	}
	return "", fmt.Errorf("the bench's sources, looked for in %q: run it in a checkout", tried)
}

// measureAll prepares, measures inside of the namespaces, and cleans up.
func measureAll(p plan, stdout io.Writer) (err error) {
	if p.Work, err = harness.NewWork("bench", toolsDir, pluginDir); err != nil {
		return err
	}
	defer func() { err = p.Close(err, p.KeepLogs, stdout) }()
	harness.Reporter{Out: stdout, Start: p.Start}.Say("building the programs to compare with")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := buildTools(ctx, p); err != nil {
		if ctx.Err() != nil {
			return harness.ErrInterrupted
		}
		return err
	}
	stop()
	return lab.Enter(p.Work, p, nil, stdout)
}

// The reference plugins to compare with, as their authors release them, but built with
// the flags of our own programs.
var referencePlugins = []string{
	"github.com/containernetworking/plugins/plugins/main/bridge",
	"github.com/containernetworking/plugins/plugins/ipam/host-local",
}

// buildTools builds the program that does nothing and the reference plugins. The outer
// program does it, because the inner program cannot reach the module proxy.
func buildTools(ctx context.Context, p plan) error {
	nothing := p.Path("noop.go")
	if err := os.WriteFile(nothing, []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		return err
	}
	source, err := sourceDir(p)
	if err != nil {
		return err
	}
	if err := goBuild(ctx, source, p.tool("noop"), nothing); err != nil {
		return err
	}
	if err := goBuild(ctx, source, p.tools()+string(filepath.Separator), referencePlugins...); err != nil {
		return err
	}
	if err := buildWhereabouts(ctx, p, filepath.Join(source, "..", "..", "whereabouts")); err != nil {
		return err
	}
	for from, to := range map[string]string{
		p.tool("noop"): p.tool("noop"), p.tool("bridge"): p.tool("bridge"), p.tool("host-local"): p.tool("host-local"),
		p.program("fairlead-cni"): p.tool("fairlead-cni"),
	} {
		if err := install(from, to); err != nil {
			return err
		}
	}
	return nil
}

// install writes a program in one piece, as fairlead-node installs its plugin. A file as
// the linker leaves it is in the page cache in small pieces, and its start costs a tenth
// more.
func install(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.WriteFile(to+".new", content, 0o755); err != nil {
		return err
	}
	return os.Rename(to+".new", to)
}

func goBuild(ctx context.Context, dir, out string, what ...string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", out}, what...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %q: %w\n%s", what, err, said)
	}
	return nil
}
