package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// environment tries wrong environments.
func (s *session) environment() error {
	b, err := s.sandbox()
	if err != nil {
		return err
	}
	defer b.close()
	set := func(name, value string) func(map[string]string) {
		return func(env map[string]string) { env[name] = value }
	}
	without := func(name string) func(map[string]string) {
		return func(env map[string]string) { delete(env, name) }
	}
	for _, c := range []struct {
		verb, what, variable string
		change               func(map[string]string)
	}{
		{"ADD", "without CNI_COMMAND", "CNI_COMMAND", without("CNI_COMMAND")},
		{"ADD", "with an unknown CNI_COMMAND", "CNI_COMMAND", set("CNI_COMMAND", "PLUG")},
		{"ADD", "without CNI_CONTAINERID", "CNI_CONTAINERID", without("CNI_CONTAINERID")},
		{"ADD", "with a CNI_CONTAINERID that is a path", "CNI_CONTAINERID", set("CNI_CONTAINERID", "../../etc")},
		{"ADD", "without CNI_NETNS", "CNI_NETNS", without("CNI_NETNS")},
		{"ADD", "with a CNI_NETNS that is not there", "CNI_NETNS", set("CNI_NETNS", filepath.Join(os.TempDir(), "no-such-netns"))},
		{"ADD", "with a CNI_NETNS that is none", "CNI_NETNS", set("CNI_NETNS", s.plugin)},
		{"ADD", "without CNI_IFNAME", "CNI_IFNAME", without("CNI_IFNAME")},
		{"ADD", "with a CNI_IFNAME of 16 characters", "CNI_IFNAME", set("CNI_IFNAME", strings.Repeat("x", 16))},
		{"ADD", "with a CNI_IFNAME that is a path", "CNI_IFNAME", set("CNI_IFNAME", "a/b")},
		{"DEL", "without CNI_CONTAINERID", "CNI_CONTAINERID", without("CNI_CONTAINERID")},
	} {
		a := b.with(c.verb, s.newest(), c.change)
		s.note(c.verb, c.what+" fails", must, "2 Parameters", a.refused())
		s.note(c.verb, c.what+": code 4 and the variable's name", should, "5 Error", a.refusedWith([]int{4}, c.variable))
	}
	// The runtime must set it, but a DEL has to go as far as it can.
	a := b.with("DEL", s.newest(), without("CNI_IFNAME"))
	s.note("DEL", "without CNI_IFNAME: code 4 and the variable's name", should, "5 Error", a.refusedWith([]int{4}, "CNI_IFNAME"))
	s.note("ADD", "that failed leaves nothing in the sandbox", must, "2 ADD", b.gone())
	return nil
}

// input tries wrong configurations.
func (s *session) input() error {
	for _, c := range []struct {
		what  string
		level level // of the demand that it fails
		stdin []byte
		codes []int
	}{
		{"nothing on standard input", must, nil, []int{5, 6}},
		{"invalid JSON", must, []byte("cniVersion: 1.0.0"), []int{6}},
		{"JSON that is cut off", must, s.stdin(s.newest(), nil)[:20], []int{6}},
		{"a cniVersion that is a number", must, s.stdin("", map[string]any{"cniVersion": 1}), []int{6}},
		{"an unknown cniVersion", must, s.stdin("9.9.9", nil), []int{1}},
		{"no name of the network", should, s.stdin(s.newest(), map[string]any{"name": nil}), []int{7}},
		{"an empty name of the network", should, s.stdin(s.newest(), map[string]any{"name": ""}), []int{7}},
		{"a name of the network that is a path", should, s.stdin(s.newest(), map[string]any{"name": "../net"}), []int{7}},
	} {
		b, err := s.sandbox()
		if err != nil {
			return err
		}
		a := s.run(b.env("ADD"), c.stdin)
		err = a.refused()
		if err == nil {
			err = b.gone() // it never existed
		}
		s.note("ADD", c.what+" fails and does nothing", c.level, "1, 2 ADD", err)
		s.note("ADD", fmt.Sprintf("%s: code %v", c.what, c.codes), should, "5 Error", a.refusedWith(c.codes))
		b.close()
	}
	return nil
}

// collection checks that GC removes the vanished sandbox and keeps the live one.
func (s *session) collection() error {
	const version = "1.1.0"
	if !s.supports(version) {
		return nil
	}
	b, err := s.sandbox()
	if err != nil {
		return err
	}
	defer b.close()
	added := b.call("ADD", version, nil)
	if err := added.ok(); err != nil {
		s.note("GC", "keeps valid attachments", must, "2 GC", fmt.Errorf("the ADD before it: %w", err))
		return nil
	}
	env := map[string]string{"CNI_COMMAND": "GC", "CNI_PATH": s.cniPath}
	valid := []map[string]string{{"containerID": b.id, "ifname": s.ifname}}
	a := s.run(env, s.stdin(version, map[string]any{"cni.dev/valid-attachments": valid}))
	s.note("GC", "succeeds", should, "2 GC", a.ok())
	s.note("GC", "keeps valid attachments", must, "2 GC", firstOf(b.there(), b.call("CHECK", version, added.stdout).ok()))

	a = s.run(env, s.stdin(version, map[string]any{"cni.dev/valid-attachments": []string{}}))
	s.note("GC", "with nothing valid succeeds", should, "2 GC", a.ok())
	s.note("DEL", "after that succeeds", must, "2 DEL", b.call("DEL", version, added.stdout).ok())
	return nil
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
