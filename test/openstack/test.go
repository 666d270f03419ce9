package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"fairlead.dev/fairlead/test/openstack/lab"
)

// resultFile is the file in the state directory in which the end-to-end test writes, on
// success, the number of its pods.
const resultFile = "pods"

// test runs go test with a laboratory. Its last line is that of a success.
func (s settings) test(ctx context.Context, stdout, stderr io.Writer) error {
	l, err := lab.Up(ctx, s.options)
	if err != nil {
		return err
	}
	pods, err := s.runTests(ctx, l, stdout, stderr)
	if err := errors.Join(err, end(ctx, l)); err != nil {
		return err
	}
	if pods != "" {
		_, _ = fmt.Fprintf(stdout, "openstack: OK release=%s pods=%s leaked=0\n", s.options.Release, pods)
	}
	return nil
}

// runTests runs go test, and returns the number of pods of the end-to-end test, "" if the
// arguments leave it out.
func (s settings) runTests(ctx context.Context, l *lab.Lab, stdout, stderr io.Writer) (pods string, err error) {
	// The ports of the contracts are bound to them.
	for i, name := range nodes {
		if _, err := l.Chassis(ctx, name, firstNumber+i); err != nil {
			return "", err
		}
	}
	// One package after the other, because some kill Neutron.
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-count=1", "-p=1", "-timeout=60m"}, s.tests...)...)
	cmd.Env = append(os.Environ(), lab.Variable+"="+l.State,
		"OS_CLIENT_CONFIG_FILE="+l.Clouds, "OS_CLOUD="+lab.K8s, // of test/openstack/contract
		"FAIRLEAD_OPENSTACK_HOST="+nodes[0], "FAIRLEAD_OPENSTACK_SECOND_HOST="+nodes[1], "FAIRLEAD_OPENSTACK_MEMBER="+lab.Member,
		fmt.Sprintf("FAIRLEAD_NEUTRON=%s,%s,%s", l.Clouds, lab.K8s, nodes[0])) // of internal/driver/neutron
	cmd.Stdout, cmd.Stderr = stdout, stderr
	// An interrupt from the terminal reaches the tests too, which end without a cleanup:
	// what they made ends with the laboratory.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = downTimeout
	err = cmd.Run()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return "", err
	}
	raw, err := os.ReadFile(filepath.Join(l.State, resultFile))
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return string(raw), err
}
