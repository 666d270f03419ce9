// Command fakeplugin is a CNI plugin that only records its calls. It serves the pod
// runner's tests.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"fairlead.dev/fairlead/test/netlab"
)

func main() { os.Exit(fakePlugin()) }

// call is one execution of the fake plugin, as it saw it.
type call struct {
	Verb, ContainerID, Netns, IfName, Args string
	Config                                 struct {
		CNIVersion    string          `json:"cniVersion"`
		Name          string          `json:"name"`
		RuntimeConfig json.RawMessage `json:"runtimeConfig"`
		PrevResult    json.RawMessage `json:"prevResult"`
	}
	// LoopbackUp is true if CNI_NETNS is a network namespace whose loopback link is up.
	LoopbackUp bool
}

// fakePlugin records its call in a file beside the configuration's "dir". A file fail-ADD
// there makes ADD fail as often as it has letters, fail-DEL does the same for DEL,
// block-ADD makes ADD hang, result replaces the answer.
func fakePlugin() int {
	stdin, err := io.ReadAll(os.Stdin)
	if err != nil {
		panic(err)
	}
	var where struct {
		Dir string `json:"dir"`
	}
	var this call
	if err := errors.Join(json.Unmarshal(stdin, &where), json.Unmarshal(stdin, &this.Config)); err != nil {
		panic(err)
	}
	this.Verb, this.ContainerID = os.Getenv("CNI_COMMAND"), os.Getenv("CNI_CONTAINERID")
	this.Netns, this.IfName, this.Args = os.Getenv("CNI_NETNS"), os.Getenv("CNI_IFNAME"), os.Getenv("CNI_ARGS")
	if this.Netns != "" {
		this.LoopbackUp = loopbackUp(this.Netns)
	}
	if this.Verb != "STATUS" { // STATUS comes about every second
		note(filepath.Join(where.Dir, "calls.jsonl"), this)
	}
	if this.Verb == "ADD" && exists(filepath.Join(where.Dir, "block-ADD")) {
		<-time.After(time.Hour) // until the runtime kills it
	}
	if spend(filepath.Join(where.Dir, "fail-"+this.Verb)) {
		fmt.Printf(`{"cniVersion":"1.1.0","code":50,"msg":"told to fail"}`)
		return 1
	}
	if this.Verb == "ADD" {
		result, err := os.ReadFile(filepath.Join(where.Dir, "result"))
		if err != nil {
			panic(err)
		}
		_, _ = os.Stdout.Write(result)
	}
	return 0
}

func note(path string, this call) {
	line, err := json.Marshal(this)
	if err != nil {
		panic(err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	if _, err := file.Write(append(line, '\n')); err != nil {
		panic(err)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// spend removes a letter from a file and reports whether there was one.
func spend(path string) bool {
	letters, err := os.ReadFile(path)
	if err != nil || len(letters) == 0 {
		return false
	}
	return os.WriteFile(path, letters[1:], 0o600) == nil
}

func loopbackUp(path string) (up bool) {
	ns, err := netlab.OpenNamespace(path)
	if err != nil {
		return false
	}
	defer ns.Close()
	err = ns.Do(func() error {
		lo, err := net.InterfaceByName("lo")
		up = err == nil && lo.Flags&net.FlagUp != 0
		return err
	})
	return up && err == nil
}
