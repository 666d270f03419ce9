package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/lab"
)

// launch is the program that the user starts. It returns the exit code: 0 if no attack
// succeeded, 1 otherwise, 2 for a wrong command line, 3 if the machine lacks something,
// 130 after Ctrl-C.
func launch(args []string, stdout, stderr io.Writer) int {
	s, err := parseFlags(args, stderr)
	if err != nil {
		return harness.WrongFlags("threat", err, stderr)
	}
	lacks := append(lab.LacksKernel(context.Background(), "make threat", false), lab.LacksTool("nft", "nftables")...)
	lacks = append(lacks, harness.MissingPrograms(s.Bin, "fairlead-controller", "fairlead-node", "fairlead-cni", "kubelab", "podrunner")...)
	if len(lacks) > 0 {
		return harness.Refuse("threat", "the suite", lacks, stderr)
	}
	result, err := runAll(s, stdout)
	if err != nil {
		return harness.Failed("threat", err, stderr)
	}
	_, _ = fmt.Fprintf(stdout, "threat: OK attacks=%d succeeded=%d\n", result.Attacks, result.Succeeded)
	return 0
}

// runAll runs the program inside of the namespaces, and checks that it left nothing on
// the machine.
func runAll(s settings, stdout io.Writer) (result verdict, err error) {
	work, err := harness.NewWork("threat")
	if err != nil {
		return result, err
	}
	defer func() { err = work.Close(err, s.KeepLogs, stdout) }()
	err = lab.Enter(work, plan{settings: s, Start: time.Now(), Work: work}, &result, stdout)
	return result, err
}
