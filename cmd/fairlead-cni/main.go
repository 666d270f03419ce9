// Command fairlead-cni is the CNI plugin that a container runtime executes. It copies one
// request to the node daemon's socket and one answer back. If no daemon answers a DEL, it
// writes the DEL to a spool.
//
// A test limits the packages that it links, because a runtime waits for its start.
package main

import (
	"io"
	"os"
	"path"
	"time"

	"fairlead.dev/fairlead/internal/cniproto"
)

func main() {
	p := plugin{
		name: path.Base(os.Args[0]), getenv: os.Getenv,
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr,
		wait: time.Sleep, //nolint:forbidigo // the plugin has no event for the return of the daemon
	}
	os.Exit(p.run())
}

// plugin is one call of the plugin, with its environment.
type plugin struct {
	// name is the program name under which the plugin was executed.
	name           string
	getenv         func(string) string
	stdin          io.Reader
	stdout, stderr io.Writer
	// wait sleeps between two attempts to reach the daemon.
	wait func(time.Duration)
}

// run serves the call and returns the exit status: 0, or 1 for an error. It writes only the
// result or a CNI error object to stdout. It writes to stderr only if stdout cannot be
// written.
func (p *plugin) run() int {
	out, status := p.answer(), 0
	if out.err != nil {
		out.result, status = out.err.Encode(), 1
	}
	if len(out.result) == 0 {
		return status
	}
	if _, err := p.stdout.Write(out.result); err != nil {
		_, _ = io.WriteString(p.stderr, "fairlead-cni: the answer cannot be written: "+err.Error()+": "+string(out.result)+"\n")
		return 1
	}
	return status
}

// outcome of a call is a result or an error. Only ADD and VERSION have a result that is not
// empty.
type outcome struct {
	result []byte
	err    *cniproto.Error
}

// answer parses and serves the call.
func (p *plugin) answer() outcome {
	if p.getenv("CNI_COMMAND") == cniproto.VerbVersion {
		result, err := cniproto.AnswerVersion(p.stdin) // needs no daemon
		if err != nil {
			return outcome{err: cniproto.AsError(err)}
		}
		return outcome{result: result}
	}
	var r cniproto.Request
	var result []byte
	at, err := r.Parse(cniproto.Call{Program: p.name, Getenv: p.getenv, Stdin: p.stdin})
	if err == nil {
		result, err = p.serve(&r, at)
	}
	if err == nil {
		return outcome{result: result}
	}
	e := *cniproto.AsError(err)
	if e.CNIVersion == "" {
		e.CNIVersion = r.CNIVersion()
	}
	return outcome{err: &e}
}
