package main

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// suiteTools are the programs of this machine in the images of Kubernetes' own tests, which
// call them in pods. Debian's busybox has a wget that does not resolve names.
var suiteTools = []string{
	"bash", "busybox", "conntrack", "curl", "dash", "dig", "getent", "iperf", "ip", "nc", "nft", "nsenter", "nslookup", "ss", "timeout", "wget",
}

// suiteImages returns stand-ins for the images of Kubernetes' own tests, under their names in
// Kubernetes 1.36: there is no registry. Their main program, agnhost, is the real one.
func suiteImages(programs string) ([]image, error) {
	system, err := suiteSystem()
	if err != nil {
		return nil, fmt.Errorf("make the images of Kubernetes' tests: %w", err)
	}
	own := map[string]member{}
	for _, name := range []string{"agnhost", "coredns", "regression-issue-74839", "localhost.crt", "localhost.key"} {
		content, err := os.ReadFile(filepath.Join(programs, suiteDir, name))
		if err != nil {
			return nil, fmt.Errorf("make the images of Kubernetes' tests: %w", err)
		}
		own[name] = member{name: name, mode: 0o755, content: content}
	}
	with := func(more ...member) []member { return append(slices.Clone(system), more...) }
	agnhost := with(own["agnhost"], own["coredns"], own["localhost.crt"], own["localhost.key"], member{name: "agnhost-2", mode: 0o777, link: "agnhost"})
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	const tests = "registry.k8s.io/e2e-test-images/"
	return []image{
		{name: tests + "agnhost:2.63.0", entrypoint: []string{"/agnhost"}, cmd: []string{"pause"}, env: env, files: agnhost},
		{name: tests + "glibc-dns-testing:2.0.0", entrypoint: []string{"/usr/bin/sh"}, env: env, files: system},
		{name: tests + "busybox:1.37.0-1", cmd: []string{"sh"}, env: env, files: system},
		{name: tests + "regression-issue-74839:1.4", entrypoint: []string{"/regression-issue-74839"}, env: env, files: with(own["regression-issue-74839"])},
		{name: "registry.k8s.io/build-image/distroless-iptables:v0.9.6", entrypoint: []string{"/usr/bin/sh"}, env: env, files: system},
		{name: "registry.k8s.io/pause:3.10.2", entrypoint: []string{"/agnhost", "pause"}, env: env, files: agnhost},
		{name: "e2e.invalid/coredns:1", entrypoint: []string{"/coredns"}, env: env, files: []member{own["coredns"]}},
	}, nil
}

// suiteSystem returns what the images have of a system.
func suiteSystem() ([]member, error) {
	paths := map[string]string{}
	for _, name := range suiteTools {
		path, err := exec.LookPath(name)
		if err != nil {
			return nil, err
		}
		paths["usr/bin/"+name] = path
		libraries, err := exec.Command("ldd", path).Output()
		if err != nil && name != "busybox" { // which is static
			return nil, fmt.Errorf("ldd %s: %w", path, err)
		}
		for _, library := range sharedObjects(string(libraries)) {
			paths[strings.TrimPrefix(library, "/")] = library
		}
	}
	var files []member
	for _, name := range slices.Sorted(maps.Keys(paths)) {
		content, err := os.ReadFile(paths[name])
		if err != nil {
			return nil, err
		}
		files = append(files, member{name: name, mode: 0o755, content: content})
	}
	applets, err := exec.Command("busybox", "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("busybox --list: %w", err)
	}
	for applet := range strings.FieldsSeq(string(applets)) {
		if _, own := paths["usr/bin/"+applet]; !own && applet != "sh" && applet != "ash" {
			files = append(files, member{name: "usr/bin/" + applet, mode: 0o777, link: "busybox"})
		}
	}
	return append(files,
		member{name: "usr/bin/sh", mode: 0o777, link: "dash"},
		member{name: "bin", mode: 0o777, link: "usr/bin"},
		member{name: "sbin", mode: 0o777, link: "usr/bin"},
		member{name: "etc/passwd", mode: 0o644, content: []byte("root:x:0:0:root:/:/bin/sh\nuser-defined-in-image:x:1000:1000::/:/bin/sh\n")},
		member{name: "etc/group", mode: 0o644, content: []byte("root:x:0:\n")},
		member{name: "etc/nsswitch.conf", mode: 0o644, content: []byte("hosts: files dns\n")},
		member{name: "uploads/.keep", mode: 0o644},
		member{name: "tmp/.keep", mode: 0o644},
	), nil
}
