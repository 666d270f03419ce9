// Command plugin is a CNI plugin for tests. It appends each call to a log, and does what a
// file beside it says (delegatetest.Does).
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"fairlead.dev/fairlead/test/delegatetest"
)

func main() {
	if len(os.Args) > 1 { // the child of a plugin that hangs
		hang()
	}
	self, err := os.Executable()
	if err == nil {
		err = run(filepath.Join(filepath.Dir(self), filepath.Base(os.Args[0])))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(path string) error {
	stdin, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	call := delegatetest.Call{Plugin: filepath.Base(path), PID: os.Getpid(), Config: stdin, Env: map[string]string{}}
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		call.Env[name] = value
	}
	verb := call.Env["CNI_COMMAND"]
	does, err := delegatetest.Read(path, verb)
	if err != nil {
		return err
	}
	var child *exec.Cmd
	if does.Hang {
		child = exec.Command("/proc/self/exe", "child")
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		if err := child.Start(); err != nil {
			return err
		}
		call.Child = child.Process.Pid
	}
	if err := log(filepath.Join(filepath.Dir(path), delegatetest.Log), call); err != nil {
		return err
	}
	if does.Address != "" && call.Env["CNI_NETNS"] != "" {
		if err := link(verb, call.Env["CNI_NETNS"], call.Env["CNI_IFNAME"], does.Address); err != nil {
			return err
		}
	}
	if does.Started != "" { // it waits for the test to read
		if err := os.WriteFile(does.Started, nil, 0); err != nil {
			return err
		}
	}
	if does.Hang {
		hang()
	}
	fmt.Fprint(os.Stderr, does.Stderr)
	if does.Answer != "" && does.Answer[0] == '/' {
		raw, err := os.ReadFile(does.Answer)
		if err != nil {
			return err
		}
		does.Answer = string(raw)
	}
	fmt.Print(strings.ReplaceAll(strings.ReplaceAll(does.Answer, "NETNS", call.Env["CNI_NETNS"]), "IFNAME", call.Env["CNI_IFNAME"]))
	os.Exit(does.Exit)
	return nil
}

// hang waits for a signal.
func hang() {
	for {
		_ = syscall.Pause()
	}
}

func log(path string, call delegatetest.Call) error {
	raw, err := json.Marshal(call)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write(append(bytes.TrimSpace(raw), '\n'))
	return err
}

// link makes a link with an address for ADD and removes it for DEL, as a plugin does with
// its interface.
func link(verb, netns, name, address string) error {
	ip := func(args ...string) error {
		out, err := exec.Command("nsenter", append([]string{"--net=" + netns, "ip"}, args...)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	switch verb {
	case "ADD":
		if err := ip("link", "add", name, "up", "type", "ifb"); err != nil {
			return err
		}
		return ip("addr", "add", address, "dev", name)
	case "DEL":
		_ = ip("link", "del", name) // there may be none
	}
	return nil
}
