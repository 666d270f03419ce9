package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"fairlead.dev/fairlead/test/netlab"
)

// callTimeout bounds one run of the plugin.
const callTimeout = 2 * time.Minute

// goneTimeout is how long an interface may take to go after DEL has answered.
const goneTimeout = 10 * time.Second

// session is a plugin and the findings about it.
type session struct {
	plugin, args, ifname, cniPath, netnsDir string
	config                                  map[string]any

	versions []string // supported by the plugin and known here, ascending
	findings []finding
}

func (s *session) note(verb, what string, l level, section string, err error) {
	s.findings = append(s.findings, finding{verb: verb, what: what, level: l, section: section, err: err})
}

// answer is the output of one run of the plugin.
type answer struct {
	stdout []byte
	failed bool
	// code and msg of the error object, if there is one.
	code int
	msg  string
	// form is the error in the form of a failure; nil for none.
	form error
}

// ok returns an error unless the run succeeded.
func (a answer) ok() error {
	if a.failed {
		return fmt.Errorf("failed: %s", bytes.TrimSpace(a.stdout))
	}
	return nil
}

// refused returns an error unless the run failed.
func (a answer) refused() error {
	if !a.failed {
		return errors.New("it succeeded")
	}
	return nil
}

// refusedWith returns an error unless the run failed in the right form, with one of these
// codes and these words.
func (a answer) refusedWith(codes []int, words ...string) error {
	if err := errors.Join(a.refused(), a.form); err != nil {
		return err
	}
	if !slices.Contains(codes, a.code) {
		return fmt.Errorf("code %d, should be one of %v: %s", a.code, codes, a.msg)
	}
	for _, w := range words {
		if !strings.Contains(a.msg, w) {
			return fmt.Errorf("the message does not name %s: %s", w, a.msg)
		}
	}
	return nil
}

// run runs the plugin with an environment and a standard input.
func (s *session) run(env map[string]string, stdin []byte) answer {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.plugin)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	for k, v := range env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.Output()
	a := answer{stdout: out, failed: err != nil}
	if a.failed {
		var e struct {
			Code int
			Msg  string
		}
		switch jsonErr := json.Unmarshal(out, &e); {
		case jsonErr != nil:
			a.form = fmt.Errorf("standard output has no error object: %q", out)
		case e.Code == 0 || e.Msg == "":
			a.form = fmt.Errorf("the error object needs a code and a msg: %s", out)
		}
		a.code, a.msg = e.Code, e.Msg
	}
	return a
}

// stdin returns the configuration in a version, with further fields, and without the
// fields that are nil.
func (s *session) stdin(version string, fields map[string]any) []byte {
	config := maps.Clone(s.config)
	config["cniVersion"] = version
	maps.Copy(config, fields)
	maps.DeleteFunc(config, func(_ string, v any) bool { return v == nil })
	raw, err := json.Marshal(config)
	if err != nil {
		panic(err) // it was decoded from JSON
	}
	return raw
}

// sandbox is a container from the view of CNI.
type sandbox struct {
	s     *session
	id    string
	netns *netlab.Namespace
}

// sandbox makes a sandbox.
func (s *session) sandbox() (*sandbox, error) {
	netns, err := netlab.NewNamespace()
	if err != nil {
		return nil, err
	}
	id := "conform-" + strings.ToLower(rand.Text())
	if err := netns.Pin(filepath.Join(s.netnsDir, id)); err != nil {
		return nil, errors.Join(err, netns.Close())
	}
	return &sandbox{s: s, id: id, netns: netns}, nil
}

// env returns the environment of a verb.
func (b *sandbox) env(verb string) map[string]string {
	return map[string]string{
		"CNI_COMMAND": verb, "CNI_CONTAINERID": b.id, "CNI_NETNS": b.netns.Path(), "CNI_IFNAME": b.s.ifname,
		"CNI_PATH": b.s.cniPath, "CNI_ARGS": b.s.args,
	}
}

// call runs a verb; prev is the result of the ADD, or nil.
func (b *sandbox) call(verb, version string, prev []byte) answer {
	fields := map[string]any{}
	if prev != nil {
		fields["prevResult"] = json.RawMessage(prev)
	}
	return b.s.run(b.env(verb), b.s.stdin(version, fields))
}

// with runs a verb with a changed environment.
func (b *sandbox) with(verb, version string, change func(env map[string]string)) answer {
	env := b.env(verb)
	change(env)
	return b.s.run(env, b.s.stdin(version, nil))
}

// close removes the sandbox like a runtime: DEL, then the namespace.
func (b *sandbox) close() {
	_ = b.call("DEL", b.s.newest(), nil)
	_ = b.netns.Close()
}

// addresses returns the addresses of the interface in the sandbox; an error if there is
// no interface.
func (b *sandbox) addresses() ([]string, error) {
	handle, err := b.netns.Netlink()
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	link, err := handle.LinkByName(b.s.ifname)
	if err != nil {
		return nil, err
	}
	addrs, err := handle.AddrList(link, netlink.FAMILY_ALL)
	var out []string
	for _, a := range addrs {
		out = append(out, a.IPNet.String())
	}
	return out, err
}

// gone waits until the interface is no longer in the sandbox, because the specification
// does not demand that DEL waits for the kernel. It returns an error if that takes too
// long.
func (b *sandbox) gone() error {
	deadline := time.After(goneTimeout)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := b.addresses(); err != nil {
			return nil // the interface is gone
		}
		select {
		case <-deadline:
			return fmt.Errorf("%s is in the sandbox, after %v", b.s.ifname, goneTimeout)
		case <-tick.C:
		}
	}
}

// there returns an error if the interface is not in the sandbox.
func (b *sandbox) there() error {
	if _, err := b.addresses(); err != nil {
		return fmt.Errorf("%s in the sandbox: %w", b.s.ifname, err)
	}
	return nil
}
