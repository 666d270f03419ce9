package images

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	spdx "github.com/spdx/tools-golang/json"

	"fairlead.dev/fairlead/tools/packaging/programs"
)

// testBuild returns a source, and a directory with small programs for this machine's
// architecture, as those of each.
func testBuild(t *testing.T) (s programs.Source, dir string) {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", "..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	small := t.TempDir()
	for name, content := range map[string]string{"go.mod": "module fairlead.dev/fairlead/small\n\ngo 1.26\n", "main.go": "package main\n\nfunc main() {}\n"} {
		if err := os.WriteFile(filepath.Join(small, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, program := range programs.Names {
		cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", filepath.Join(dir, "amd64", program), ".")
		cmd.Dir = small
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if err := os.CopyFS(filepath.Join(dir, "arm64"), os.DirFS(filepath.Join(dir, "amd64"))); err != nil {
		t.Fatal(err)
	}
	return programs.Source{Root: root, Version: "v1.2.3", Commit: "0123abcd", At: time.Unix(1763632800, 0).UTC()}, dir
}

var testDebs = []debPackage{{arch: "amd64", name: "nftables", version: "1.0.6-2", sum: strings.Repeat("ab", 32)}}

// write writes a layout of both platforms, with a base of few files.
func write(t *testing.T, s programs.Source, dir, out string) v1.Hash {
	t.Helper()
	base := Base{debs: testDebs, files: files{
		"usr/sbin/nft": {content: []byte("nft"), mode: 0o755}, "var/run": {link: "/run", mode: 0o777}, "tmp/": {dir: true, mode: 0o1777},
	}}
	digest, err := Write(s, map[string]Base{"amd64": base, "arm64": base}, dir, out)
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

// TestReproducible builds twice, in different directories: every byte of both layouts is the
// same. The second is written over another layout.
func TestReproducible(t *testing.T) {
	b, dir := testBuild(t)
	first, second := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	write(t, b, dir, first)
	other := b
	other.Version = "v0.0.1"
	write(t, other, dir, second)
	write(t, b, dir, second)
	if diff := cmp.Diff(tree(t, first), tree(t, second)); diff != "" {
		t.Errorf("two builds differ (-first +second):\n%s", diff)
	}
	_, again := testBuild(t)
	third := filepath.Join(t.TempDir(), "c")
	write(t, b, again, third)
	if diff := cmp.Diff(tree(t, first), tree(t, third)); diff != "" {
		t.Errorf("programs that were built in another directory differ (-first +third):\n%s", diff)
	}
}

// tree returns the digest of each file below a directory.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		out[strings.TrimPrefix(path, dir)], err = programs.Sum(path)
		return err
	})
	if err != nil || len(out) == 0 {
		t.Fatalf("%d files, %v", len(out), err)
	}
	return out
}

// TestLayout reads the layout as a registry's client does.
func TestLayout(t *testing.T) {
	b, dir := testBuild(t)
	out := filepath.Join(t.TempDir(), "fairlead")
	want := write(t, b, dir, out)
	top, err := layout.ImageIndexFromPath(out)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := top.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("%v, %v", manifest, err)
	}
	entry := manifest.Manifests[0]
	if entry.Digest != want || entry.Annotations["org.opencontainers.image.ref.name"] != "v1.2.3" {
		t.Errorf("the layout has %+v; must be %s as v1.2.3", entry, want)
	}
	index, err := top.ImageIndex(entry.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if manifest, err = index.IndexManifest(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range manifest.Manifests {
		got = append(got, m.Platform.String())
		image, err := index.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		if m.Platform.OS == "unknown" {
			checkAttestations(t, image, m, manifest.Manifests)
		} else {
			checkImage(t, image, m.Platform.Architecture)
		}
	}
	if diff := cmp.Diff([]string{"linux/amd64", "unknown/unknown", "linux/arm64", "unknown/unknown"}, got); diff != "" {
		t.Errorf("platforms (-want +got):\n%s", diff)
	}
}

func checkImage(t *testing.T, image v1.Image, arch string) {
	t.Helper()
	if err := validate.Image(image); err != nil {
		t.Error(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Architecture != arch || config.OS != "linux" || config.Config.User != user || config.Config.Labels["org.opencontainers.image.version"] != "v1.2.3" {
		t.Errorf("the configuration for %s is %+v", arch, config)
	}
	members := map[string]*tar.Header{}
	r := mutate.Extract(image)
	defer r.Close()
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || !h.ModTime.Equal(time.Unix(1763632800, 0)) {
			t.Errorf("%s is of %d:%d, %v", h.Name, h.Uid, h.Gid, h.ModTime)
		}
		members[strings.TrimSuffix(h.Name, "/")] = h
	}
	for name, mode := range map[string]int64{
		"usr/local/bin/fairlead-controller": 0o755, "usr/local/bin/fairlead-node": 0o755, "usr/local/bin/fairlead-cni": 0o755,
		"usr/local/bin/fairlead": 0o755, "usr/sbin/nft": 0o755, "usr/share/doc/fairlead/LICENSE": 0o644, "tmp": 0o1777, "usr/local": 0o755, "var/run": 0o777,
	} {
		if h := members[name]; h == nil || h.Mode != mode {
			t.Errorf("%s: %+v; must have mode %o", name, h, mode)
		}
	}
}

func checkAttestations(t *testing.T, image v1.Image, m v1.Descriptor, all []v1.Descriptor) {
	t.Helper()
	subject := m.Annotations["vnd.docker.reference.digest"]
	if !slices.ContainsFunc(all, func(d v1.Descriptor) bool { return d.Digest.String() == subject && d.Platform.OS == "linux" }) {
		t.Errorf("the attestations are about %q, which the index does not have", subject)
	}
	manifest, err := image.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	if manifest.Subject == nil || manifest.Subject.Digest.String() != subject {
		t.Errorf("the subject is %+v; must be %s", manifest.Subject, subject)
	}
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]json.RawMessage{}
	for i, layer := range layers {
		r, err := layer.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		var s struct {
			Type          string `json:"_type"`
			Subject       []struct{ Digest map[string]string }
			PredicateType string
			Predicate     json.RawMessage
		}
		if err := json.NewDecoder(r).Decode(&s); err != nil {
			t.Fatal(err)
		}
		if s.Type != "https://in-toto.io/Statement/v1" || "sha256:"+s.Subject[0].Digest["sha256"] != subject ||
			manifest.Layers[i].Annotations["in-toto.io/predicate-type"] != s.PredicateType {
			t.Errorf("the statement %+v is about another image than %s", s, subject)
		}
		found[s.PredicateType] = s.Predicate
	}
	doc, err := spdx.Read(bytes.NewReader(found["https://spdx.dev/Document"]))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range doc.Packages {
		names = append(names, p.PackageName)
	}
	for _, want := range []string{"fairlead", "fairlead.dev/fairlead/small", "stdlib", "nftables"} {
		if !slices.Contains(names, want) {
			t.Errorf("the contents lack %s; they are %v", want, names)
		}
	}
	provenance := string(found["https://slsa.dev/provenance/v1"])
	for _, want := range []string{`"gitCommit":"0123abcd"`, `"version":"v1.2.3"`, "pkg:deb/debian/nftables@1.0.6-2", runtime.Version()[2:]} {
		if !strings.Contains(provenance, want) {
			t.Errorf("the provenance lacks %s: %s", want, provenance)
		}
	}
}

// TestLock reads the lock of this source, and refuses others with the line.
func TestLock(t *testing.T) {
	packages, err := readLock("debian.lock")
	if err != nil || len(packages) != 2*len(names) {
		t.Errorf("%d packages, %v", len(packages), err)
	}
	for _, line := range []string{"amd64 nftables 1.0.6", "mips nftables 1.0.6 " + strings.Repeat("a", 64), "amd64 bash 5 " + strings.Repeat("a", 64)} {
		file := filepath.Join(t.TempDir(), "debian.lock")
		if err := os.WriteFile(file, []byte(line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readLock(file); err == nil || !strings.Contains(err.Error(), strings.Fields(line)[1]) {
			t.Errorf("%q: %v", line, err)
		}
	}
}

// TestForeignPackage refuses a package of another digest than the lock's, and asks no archive
// for packages that it has.
func TestForeignPackage(t *testing.T) {
	cache := t.TempDir()
	p := debPackage{arch: "amd64", name: "nftables", version: "1.0.6-2"}
	if err := os.WriteFile(filepath.Join(cache, p.file()), []byte("deb"), 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	if p.sum, err = programs.Sum(filepath.Join(cache, p.file())); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", "/nonexistent") // no apt-get
	if got, err := fetch(t.Context(), []debPackage{p}, "amd64", cache); err != nil || len(got) != 1 {
		t.Errorf("%v, %v", got, err)
	}
	p.sum = strings.Repeat("0", 64)
	if _, err := fetch(t.Context(), []debPackage{p}, "amd64", cache); err == nil || !strings.Contains(err.Error(), "apt-get") {
		t.Errorf("a package of another digest: %v", err)
	}
}

// TestClosure copies no program that is incomplete: the error names the file.
func TestClosure(t *testing.T) {
	f := files{"bin/p": {content: []byte("no program"), mode: 0o755}, "bin/loop": {link: "loop"}}
	if err := f.copyProgram("bin/p", files{}, "x"); err == nil || !strings.Contains(err.Error(), "bin/p") {
		t.Errorf("a file that is no program: %v", err)
	}
	if err := f.copyProgram("bin/q", files{}, "x"); err == nil || !strings.Contains(err.Error(), "no file bin/q") {
		t.Errorf("a missing program: %v", err)
	}
	if _, err := f.resolve("bin/loop"); err == nil {
		t.Error("a loop of links is resolved")
	}
}

// TestRegistry pushes the layout to a registry, which lists the attestations of each
// platform's image as its referrers.
func TestRegistry(t *testing.T) {
	b, dir := testBuild(t)
	out := filepath.Join(t.TempDir(), "fairlead")
	digest := write(t, b, dir, out)
	top, err := layout.ImageIndexFromPath(out)
	if err != nil {
		t.Fatal(err)
	}
	index, err := top.ImageIndex(digest)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(registry.New(registry.WithReferrersSupport(true), registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	tag, err := name.NewTag(strings.TrimPrefix(server.URL, "http://") + "/fairlead:v1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(tag, index); err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(manifest.Manifests); i += 2 {
		image, attestations := manifest.Manifests[i], manifest.Manifests[i+1]
		referrers, err := remote.Referrers(tag.Context().Digest(image.Digest.String()))
		if err != nil {
			t.Fatal(err)
		}
		list, err := referrers.IndexManifest()
		if err != nil || len(list.Manifests) != 1 || list.Manifests[0].Digest != attestations.Digest {
			t.Errorf("the referrers of %s are %+v, %v; must be %s", image.Platform, list, err, attestations.Digest)
		}
	}
}
