package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
)

// known are the versions that can be checked, ascending.
var known = []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}

func (s *session) newest() string { return s.versions[len(s.versions)-1] }

func (s *session) supports(version string) bool { return slices.Contains(s.versions, version) }

// all runs all checks. It returns an error if they cannot be run.
func (s *session) all() error {
	if err := s.version(); err != nil {
		return err
	}
	steps := []func() error{s.versionCycles, s.deletions, s.additions, s.checks, s.status, s.environment, s.input, s.collection}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// version checks the verb VERSION and reads the supported versions.
func (s *session) version() error {
	const asked = "1.0.0"
	a := s.run(map[string]string{"CNI_COMMAND": "VERSION"}, []byte(`{"cniVersion":"`+asked+`"}`))
	var got struct {
		CNIVersion        string
		SupportedVersions []string
	}
	err := a.ok()
	if err == nil {
		err = json.Unmarshal(a.stdout, &got)
	}
	for _, v := range known {
		if slices.Contains(got.SupportedVersions, v) {
			s.versions = append(s.versions, v)
		}
	}
	if err == nil && len(s.versions) == 0 {
		err = fmt.Errorf("supports %v, and none of %v", got.SupportedVersions, known)
	}
	s.note("VERSION", "lists the supported versions", must, "5 VERSION Success", err)
	if err != nil {
		return fmt.Errorf("VERSION: %w", err)
	}
	err = nil
	if got.CNIVersion != asked {
		err = fmt.Errorf("answers in %q, asked in %s", got.CNIVersion, asked)
	}
	s.note("VERSION", "answers in the version that it is asked in", must, "5 VERSION Success", err)
	return nil
}

// versionCycles adds, checks and deletes a sandbox in each version.
func (s *session) versionCycles() error {
	for _, version := range s.versions {
		b, err := s.sandbox()
		if err != nil {
			return err
		}
		s.life(b, version)
		b.close()
	}
	return nil
}

func (s *session) life(b *sandbox, version string) {
	added := b.call("ADD", version, nil)
	err := added.ok()
	if err == nil {
		err = b.there()
	}
	s.note("ADD", "makes the interface, in "+version, must, "2 ADD", err)
	if err != nil {
		return
	}
	s.note("ADD", "reports its result, in "+version, must, "5 ADD Success", b.compare(added.stdout, version))
	if version >= "0.4.0" {
		s.note("CHECK", "finds nothing wrong after ADD, in "+version, must, "2 CHECK", b.call("CHECK", version, added.stdout).ok())
	}
	a := b.call("DEL", version, added.stdout)
	s.note("DEL", "takes the interface away, in "+version, must, "2 DEL", errors.Join(a.ok(), b.gone()))
	err = nil
	if len(a.stdout) > 0 {
		err = fmt.Errorf("it prints %q", a.stdout)
	}
	s.note("DEL", "prints nothing, in "+version, should, "2 DEL", err)
}

// compare compares a result with the sandbox.
func (b *sandbox) compare(stdout []byte, version string) error {
	var result struct {
		CNIVersion string
		Interfaces []struct{ Name, Sandbox string }
		IPs        []struct {
			Address   string
			Interface *int
		}
	}
	if err := json.Unmarshal(stdout, &result); err != nil {
		return fmt.Errorf("%w: %s", err, stdout)
	}
	if result.CNIVersion != version {
		return fmt.Errorf("cniVersion is %q", result.CNIVersion)
	}
	inside := slices.IndexFunc(result.Interfaces, func(i struct{ Name, Sandbox string }) bool {
		return i.Name == b.s.ifname && i.Sandbox == b.netns.Path()
	})
	if inside < 0 {
		return fmt.Errorf("%s in %s is not among the interfaces: %s", b.s.ifname, b.netns.Path(), stdout)
	}
	addresses, err := b.addresses()
	if err != nil {
		return err
	}
	for _, ip := range result.IPs {
		if ip.Interface == nil || *ip.Interface != inside {
			continue // an address of another interface
		}
		if !slices.Contains(addresses, ip.Address) {
			return fmt.Errorf("%s is not among the interface's addresses %v", ip.Address, addresses)
		}
	}
	return nil
}

// deletions tries DEL with less and less information.
func (s *session) deletions() error {
	version := s.newest()
	for _, c := range []struct {
		what  string
		level level
		del   func(b *sandbox, result []byte) answer
	}{
		{"a second time succeeds", must, func(b *sandbox, result []byte) answer {
			if a := b.call("DEL", version, result); a.failed {
				return a
			}
			return b.call("DEL", version, result)
		}},
		{"without prevResult succeeds", should, func(b *sandbox, _ []byte) answer { return b.call("DEL", version, nil) }},
		{"with an empty CNI_NETNS succeeds", must, func(b *sandbox, _ []byte) answer {
			return b.with("DEL", version, func(env map[string]string) { env["CNI_NETNS"] = "" })
		}},
		{"without CNI_NETNS succeeds", must, func(b *sandbox, _ []byte) answer {
			return b.with("DEL", version, func(env map[string]string) { delete(env, "CNI_NETNS") })
		}},
		{"when the namespace is gone succeeds", should, func(b *sandbox, result []byte) answer {
			return b.with("DEL", version, func(env map[string]string) { env["CNI_NETNS"] += "-gone" })
		}},
	} {
		if err := s.deletion(c.what, c.level, c.del); err != nil {
			return err
		}
	}
	b, err := s.sandbox()
	if err != nil {
		return err
	}
	defer b.close()
	s.note("DEL", "of an interface that was never added succeeds", must, "2 DEL", b.call("DEL", version, nil).ok())
	return nil
}

func (s *session) deletion(what string, l level, del func(b *sandbox, result []byte) answer) error {
	b, err := s.sandbox()
	if err != nil {
		return err
	}
	defer b.close()
	added := b.call("ADD", s.newest(), nil)
	if err := added.ok(); err != nil {
		s.note("DEL", what, l, "2 DEL", fmt.Errorf("the ADD before it: %w", err))
		return nil
	}
	s.note("DEL", what, l, "2 DEL", del(b, added.stdout).ok())
	return nil
}

// additions tries ADD if the interface exists already: another program's, or that of a
// first ADD. It also tries ADD after a DEL.
func (s *session) additions() error {
	version := s.newest()
	b, err := s.sandbox()
	if err != nil {
		return err
	}
	defer b.close()
	handle, err := b.netns.Netlink()
	if err != nil {
		return err
	}
	defer handle.Close()
	existing := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: s.ifname}, PeerName: "conform"}
	if err := handle.LinkAdd(existing); err != nil {
		return fmt.Errorf("a link that is in the way: %w", err)
	}
	before, err := handle.LinkByName(s.ifname)
	if err != nil {
		return err
	}
	s.note("ADD", "fails where an interface has the name already", must, "2 ADD", b.call("ADD", version, nil).refused())
	link, err := handle.LinkByName(s.ifname)
	if err == nil && link.Attrs().Index != before.Attrs().Index {
		err = fmt.Errorf("it is another %s now", link.Type())
	}
	s.note("ADD", "and leaves that as it is", should, "2 ADD", err)
	if err == nil {
		err = handle.LinkDel(link)
	}
	if err != nil {
		return err
	}

	first := b.call("ADD", version, nil)
	again := b.call("ADD", version, nil)
	err = first.ok()
	if err == nil && again.failed {
		err = again.form
	}
	s.note("ADD", "a second time answers or fails in order", should, "2 ADD", errors.Join(err, b.there()))
	err = errors.Join(b.call("DEL", version, nil).ok(), b.gone())
	if err == nil {
		err = b.call("ADD", version, nil).ok()
	}
	s.note("ADD", "works again after a DEL, with the same CNI_CONTAINERID", should, "2 ADD", err)
	return nil
}

// checks damages the result of an ADD and calls CHECK.
func (s *session) checks() error {
	version := s.newest()
	if version < "0.4.0" {
		return nil
	}
	b, err := s.sandbox()
	if err != nil {
		return err
	}
	defer b.close()
	added := b.call("ADD", version, nil)
	if err := added.ok(); err != nil {
		s.note("CHECK", "detects damage", should, "2 CHECK", fmt.Errorf("the ADD before it: %w", err))
		return nil
	}
	s.note("CHECK", "fails without prevResult", should, "2 CHECK", b.call("CHECK", version, nil).refused())
	handle, err := b.netns.Netlink()
	if err != nil {
		return err
	}
	defer handle.Close()
	link, err := handle.LinkByName(s.ifname)
	if err != nil {
		s.note("CHECK", "detects damage", should, "2 CHECK", fmt.Errorf("after ADD: %w", err))
		return nil
	}
	addresses, err := handle.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	for _, a := range addresses {
		if err := handle.AddrDel(link, &a); err != nil {
			return err
		}
	}
	if len(addresses) > 0 {
		s.note("CHECK", "fails when an address is gone", should, "2 CHECK", b.call("CHECK", version, added.stdout).refused())
	}
	if err := handle.LinkDel(link); err != nil {
		return err
	}
	s.note("CHECK", "fails when the interface is gone", should, "2 CHECK", b.call("CHECK", version, added.stdout).refused())
	return nil
}

func (s *session) status() error {
	if !s.supports("1.1.0") {
		return nil
	}
	// Only the command is required.
	a := s.run(map[string]string{"CNI_COMMAND": "STATUS", "CNI_PATH": s.cniPath}, s.stdin("1.1.0", nil))
	err := a.ok()
	if err != nil {
		err = a.refusedWith([]int{50, 51})
	}
	s.note("STATUS", "succeeds, or fails with code 50 or 51", must, "2 STATUS", err)
	return nil
}
