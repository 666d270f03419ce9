package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	spdx "github.com/spdx/tools-golang/json"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/fairlead/tools/packaging/images"
	"fairlead.dev/fairlead/tools/packaging/programs"
)

const changelog = "# Changelog\n\n## [Unreleased]\n\n- later\n\n## [0.2.0] - 2026-11-27\n\n### Running it\n\n- new\n\n## [0.1.0] - 2026-11-26\n\n- old\n"

// noBases gives images nothing below the programs.
func noBases(context.Context, string) (map[string]images.Base, error) {
	return map[string]images.Base{"amd64": {}, "arm64": {}}, nil
}

func git(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = append(cmd.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
}

// smallSource returns a clone with small programs, and with the manifests of this source.
func smallSource(t *testing.T) string {
	t.Helper()
	dir, root := t.TempDir(), filepath.Join("..", "..", "..")
	for _, folder := range staged {
		if err := os.CopyFS(filepath.Join(dir, folder), os.DirFS(filepath.Join(root, folder))); err != nil {
			t.Fatal(err)
		}
	}
	files := map[string]string{
		"go.mod": "module fairlead.dev/fairlead\n\ngo 1.26\n", "CHANGELOG.md": changelog, "LICENSE": "a licence\n", "THIRD_PARTY_NOTICES": "notices\n",
		"internal/run/run.go":           "package run\n\nvar Version string\n",
		"internal/cniproto/cniproto.go": "package cniproto\n\nvar Version string\n",
	}
	for _, program := range programs.Names {
		files["cmd/"+program+"/main.go"] = "package main\n\nimport (\n\t\"os\"\n\n\t\"fairlead.dev/fairlead/internal/cniproto\"\n\t\"fairlead.dev/fairlead/internal/run\"\n)\n\n" +
			"func main() { os.Stdout.WriteString(\"" + program + " \" + run.Version + cniproto.Version) }\n"
	}
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	git(t, dir, "init", "-q")
	git(t, dir, "add", "-A")
	git(t, dir, "commit", "-q", "-m", "all: begin")
	return dir
}

// made makes a release of a source, and returns its files.
func made(t *testing.T, root, out string) map[string]string {
	t.Helper()
	s, err := programs.Open(t.Context(), root, "v0.2.0")
	if err != nil {
		t.Fatal(err)
	}
	if err := Write(t.Context(), s, noBases, out); err != nil {
		t.Fatal(err)
	}
	subjects, err := subjectsIn(out)
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]string{}
	for _, f := range subjects {
		sums[f.Name] = f.SHA256
	}
	return sums
}

// TestReproducible makes two releases of one commit, from clones in different directories, with
// files of different times, and with other settings of the machine: every byte is the same. The
// second replaces another release.
func TestReproducible(t *testing.T) {
	root := smallSource(t)
	clone := filepath.Join(t.TempDir(), "a", "longer", "path")
	git(t, root, "clone", "-q", root, clone)
	if err := os.Chtimes(filepath.Join(clone, "deploy", "chart", "values.yaml"), time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	second := filepath.Join(t.TempDir(), "b")
	if err := errors.Join(os.Mkdir(second, 0o700), os.WriteFile(filepath.Join(second, "stale"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	want := made(t, root, filepath.Join(t.TempDir(), "a"))
	t.Setenv("GOAMD64", "v3")
	t.Setenv("GOFLAGS", "-tags=other")
	t.Setenv("TZ", "Asia/Tokyo")
	defer syscall.Umask(syscall.Umask(0o077))
	if diff := cmp.Diff(want, made(t, clone, second)); diff != "" {
		t.Errorf("two releases of one commit differ (-first +second):\n%s", diff)
	}
	git(t, clone, "commit", "-q", "--allow-empty", "--date=2030-01-01T00:00:00Z", "-m", "another commit")
	if other := made(t, clone, second); other["provenance.json"] == want["provenance.json"] {
		t.Error("the provenance of another commit is the same")
	}
}

// TestFiles reads each file of a release as its user does.
func TestFiles(t *testing.T) {
	out := filepath.Join(t.TempDir(), "r")
	sums := made(t, smallSource(t), out)
	want := []string{
		"RELEASE_NOTES.md", "SHA256SUMS", "alerts.yaml", "cleanup.yaml", "crds.yaml", "dashboard.json", "default-pool.yaml", "fairlead-0.2.0.tgz",
		"fairlead-cli-v0.2.0-linux-amd64.tar.gz", "fairlead-cli-v0.2.0-linux-arm64.tar.gz", "fairlead-image-v0.2.0.tar",
		"fairlead-manifests-v0.2.0.tar.gz", "fairlead-programs-v0.2.0-linux-amd64.tar.gz", "fairlead-programs-v0.2.0-linux-arm64.tar.gz",
		"fairlead-v0.2.0-linux-amd64.spdx.json", "fairlead-v0.2.0-linux-arm64.spdx.json",
		"image.digest", "install.yaml", "networks.yaml", "provenance.json", "rules.yaml",
	}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(sums))); diff != "" {
		t.Fatalf("files (-want +got):\n%s", diff)
	}
	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "SHA256SUMS")
	check.Dir = out
	if text, err := check.CombinedOutput(); err != nil || strings.Count(string(text), ": OK\n") != len(want)-1 {
		t.Errorf("sha256sum: %v\n%s", err, text)
	}
	if got := read(t, out, "RELEASE_NOTES.md"); got != "# Fairlead 0.2.0, 2026-11-27\n\n### Running it\n\n- new\n" {
		t.Errorf("the notes are %q", got)
	}
	t.Run("objects", func(t *testing.T) { checkObjects(t, out) })
	t.Run("chart", func(t *testing.T) { checkChart(t, out) })
	t.Run("programs", func(t *testing.T) { checkPrograms(t, out) })
	t.Run("image", func(t *testing.T) { checkImage(t, out) })
	t.Run("provenance", func(t *testing.T) { checkProvenance(t, out, sums) })
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// members returns the files of an archive.
func members(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var r io.Reader = f
	if strings.HasSuffix(path, "gz") {
		if r, err = gzip.NewReader(f); err != nil {
			t.Fatal(err)
		}
	}
	return untarred(t, r)
}

// untarred returns the files of an archive, which are of root, of one time, and of the modes
// of programs or other files.
func untarred(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	out, at := map[string]string{}, time.Time{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeDir {
			continue
		}
		if at.IsZero() {
			at = h.ModTime
		}
		mode := int64(0o644)
		if slices.Contains(programs.Names, filepath.Base(h.Name)) {
			mode = 0o755
		}
		if !h.ModTime.Equal(at) || h.Mode != mode || h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%s has mode %o, owner %d and time %v; must have %o, 0 and %v", h.Name, h.Mode, h.Uid, h.ModTime, mode, at)
		}
		raw, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		out[h.Name] = string(raw)
	}
}

var imageLine = regexp.MustCompile(`(?m)^ *(?:- )?image: (\S+)$`)

// checkObjects looks for the version in the manifests, and for the objects of each file.
func checkObjects(t *testing.T, out string) {
	for name, want := range map[string][]string{"install.yaml": {"fairlead:v0.2.0", "fairlead:v0.2.0"}, "cleanup.yaml": {"fairlead:v0.2.0", "fairlead:v0.2.0"}, "crds.yaml": nil} {
		var got []string
		for _, m := range imageLine.FindAllStringSubmatch(read(t, out, name), -1) {
			got = append(got, m[1])
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("images of %s (-want +got):\n%s", name, diff)
		}
	}
	crds, err := filepath.Glob("../../../api/v1alpha1/crd/fairlead.dev_*.yaml")
	if err != nil || strings.Count(read(t, out, "crds.yaml"), "\nkind: CustomResourceDefinition\n") != len(crds) {
		t.Errorf("crds.yaml does not have the %d definitions, %v", len(crds), err)
	}
	install := read(t, out, "install.yaml")
	if kind := regexp.MustCompile(`(?m)^kind: (\w+)$`).FindStringSubmatch(install); kind == nil || kind[1] != "Namespace" {
		t.Errorf("install.yaml begins with %q; must be the namespace, which the others are in", kind)
	}
	var set appsv1.DaemonSet
	if err := yaml.UnmarshalStrict([]byte(read(t, out, "cleanup.yaml")), &set); err != nil {
		t.Fatal(err)
	}
	if set.Kind != "DaemonSet" || len(set.Spec.Template.Spec.InitContainers) != 1 {
		t.Errorf("cleanup.yaml is %s with %d init containers", set.Kind, len(set.Spec.Template.Spec.InitContainers))
	}
	// The daemons and the pods of the clean-up read one configuration.
	if config := set.Spec.Template.Spec.Volumes[0].ConfigMap; config == nil || !strings.Contains(install, "  name: "+config.Name+"\n") {
		t.Errorf("install.yaml has no ConfigMap of cleanup.yaml: %+v", config)
	}
	files := members(t, filepath.Join(out, "fairlead-manifests-v0.2.0.tar.gz"))
	for _, name := range []string{"LICENSE", "deploy/kustomization.yaml", "deploy/chart/Chart.yaml", "deploy/cleanup/kustomization.yaml", "api/v1alpha1/crd/kustomization.yaml"} {
		if files["fairlead/"+name] == "" {
			t.Errorf("the archive of manifests lacks %s", name)
		}
	}
}

func checkChart(t *testing.T, out string) {
	chart, err := loader.Load(filepath.Join(out, "fairlead-0.2.0.tgz"))
	if err != nil {
		t.Fatal(err)
	}
	if err := chart.Validate(); err != nil {
		t.Error(err)
	}
	if chart.Metadata.Version != "0.2.0" || chart.Metadata.AppVersion != "v0.2.0" || len(chart.CRDObjects()) == 0 {
		t.Errorf("the chart is %+v with %d definitions", chart.Metadata, len(chart.CRDObjects()))
	}
	_ = members(t, filepath.Join(out, "fairlead-0.2.0.tgz"))
}

func checkPrograms(t *testing.T, out string) {
	for _, arch := range programs.Architectures {
		suffix := "v0.2.0-linux-" + arch
		got := map[string]string{}
		for archive, want := range map[string][]string{
			"fairlead-cli": {"LICENSE", "THIRD_PARTY_NOTICES", "fairlead"}, "fairlead-programs": {"LICENSE", "THIRD_PARTY_NOTICES", "fairlead-cni", "fairlead-controller", "fairlead-node"},
		} {
			files := members(t, filepath.Join(out, archive+"-"+suffix+".tar.gz"))
			if diff := cmp.Diff(want, slices.Sorted(maps.Keys(files))); diff != "" {
				t.Errorf("members of %s (-want +got):\n%s", archive, diff)
			}
			maps.Copy(got, files)
		}
		for _, program := range programs.Names {
			if !strings.Contains(got[program], "v0.2.0") {
				t.Errorf("%s for %s does not have its version", program, arch)
			}
		}
		doc, err := spdx.Read(strings.NewReader(read(t, out, "fairlead-"+suffix+".spdx.json")))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, p := range doc.Packages {
			names = append(names, p.PackageName)
		}
		want := []string{"fairlead.dev/fairlead/cmd/fairlead", "fairlead.dev/fairlead/cmd/fairlead-cni", "fairlead.dev/fairlead/cmd/fairlead-controller", "fairlead.dev/fairlead/cmd/fairlead-node", "stdlib"}
		if slices.Sort(names); !slices.Equal(names, want) {
			t.Errorf("the contents for %s are %v; must be %v", arch, names, want)
		}
	}
	program := filepath.Join(t.TempDir(), "fairlead")
	files := members(t, filepath.Join(out, "fairlead-cli-v0.2.0-linux-amd64.tar.gz"))
	if err := os.WriteFile(program, []byte(files["fairlead"]), 0o700); err != nil {
		t.Fatal(err)
	}
	if text, err := exec.CommandContext(t.Context(), program).Output(); err != nil || string(text) != "fairlead v0.2.0v0.2.0" {
		t.Errorf("the program prints %q, %v", text, err)
	}
}

// checkImage unpacks the archive of the image, and compares its programs with the others.
func checkImage(t *testing.T, out string) {
	dir := t.TempDir()
	for name, content := range members(t, filepath.Join(out, "fairlead-image-v0.2.0.tar")) {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("%+v, %v", manifest, err)
	}
	m := manifest.Manifests[0]
	if want := strings.TrimSpace(read(t, out, "image.digest")); m.Digest.String() != want || m.Annotations["org.opencontainers.image.ref.name"] != "v0.2.0" {
		t.Errorf("the layout has %+v; must be %s as v0.2.0", m, want)
	}
	if index, err = index.ImageIndex(m.Digest); err != nil {
		t.Fatal(err)
	}
	if manifest, err = index.IndexManifest(); err != nil {
		t.Fatal(err)
	}
	var platforms []string
	for _, m := range manifest.Manifests {
		if m.Platform.OS != "linux" {
			continue
		}
		arch := m.Platform.Architecture
		platforms = append(platforms, arch)
		image, err := index.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		r := mutate.Extract(image)
		got := untarred(t, r)
		_ = r.Close()
		for name := range archives {
			for member, content := range members(t, filepath.Join(out, name+"-v0.2.0-linux-"+arch+".tar.gz")) {
				if slices.Contains(programs.Names, member) && got["usr/local/bin/"+member] != content {
					t.Errorf("%s for %s in the image differs from that in %s", member, arch, name)
				}
			}
		}
	}
	if diff := cmp.Diff(programs.Architectures, platforms); diff != "" {
		t.Errorf("architectures of the image (-want +got):\n%s", diff)
	}
}

func checkProvenance(t *testing.T, out string, sums map[string]string) {
	var s struct {
		Subject []struct {
			Name   string
			Digest map[string]string
		}
		PredicateType string
	}
	if err := json.Unmarshal([]byte(read(t, out, "provenance.json")), &s); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, subject := range s.Subject {
		got[subject.Name] = subject.Digest["sha256"]
	}
	want := maps.Clone(sums)
	delete(want, "provenance.json")
	delete(want, "SHA256SUMS")
	if diff := cmp.Diff(want, got); diff != "" || s.PredicateType != programs.Provenance {
		t.Errorf("a statement of type %s about (-want +got):\n%s", s.PredicateType, diff)
	}
}

// TestRefused refuses to release a source under a version that is not its own: the error
// names the remedy, and an earlier release stays.
func TestRefused(t *testing.T) {
	root := smallSource(t)
	for _, tt := range []struct {
		name, version, changed, content string
		want                            error
		words                           []string
	}{
		{"no version", "", "", "", ErrVersion, []string{`""`, "v0.2.0"}},
		{"no v", "0.2.0", "", "", ErrVersion, []string{`"0.2.0"`}},
		{"half a version", "v0.2", "", "", ErrVersion, []string{`"v0.2"`}},
		{"a path", "v../../x", "", "", ErrVersion, []string{`"v../../x"`}},
		{"what git describe prints of a commit", "v0.2.0+dirty", "", "", ErrVersion, []string{"build metadata"}},
		{"no section", "v0.3.0", "", "", ErrChangelog, []string{`"## [0.3.0] - YYYY-MM-DD"`, `"## [Unreleased]"`}},
		{"a section of another version", "v0.2.0-rc.1", "", "", ErrChangelog, []string{"0.2.0-rc.1"}},
		{"a changed file", "v0.2.0", "LICENSE", "another licence\n", ErrChanged, []string{" M LICENSE"}},
		{"a new file", "v0.2.0", "cmd/new.go", "package cmd\n", ErrChanged, []string{"?? cmd/new.go"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.changed != "" {
				path := filepath.Join(root, tt.changed)
				before, err := os.ReadFile(path)
				if err := os.WriteFile(path, []byte(tt.content), 0o600); err != nil {
					t.Fatal(err)
				}
				defer func() {
					if err != nil {
						_ = os.Remove(path)
						return
					}
					_ = os.WriteFile(path, before, 0o600)
				}()
			}
			out := filepath.Join(t.TempDir(), "r")
			if err := errors.Join(os.Mkdir(out, 0o700), os.WriteFile(filepath.Join(out, "before"), nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			s, err := programs.Open(t.Context(), root, tt.version)
			if err != nil {
				t.Fatal(err)
			}
			bases := func(context.Context, string) (map[string]images.Base, error) {
				t.Error("a base is made for a release that is refused")
				return nil, nil
			}
			err = Write(t.Context(), s, bases, out)
			if !errors.Is(err, tt.want) {
				t.Fatalf("error %v; must be %v", err, tt.want)
			}
			for _, word := range tt.words {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("the error lacks %q: %v", word, err)
				}
			}
			if _, err := os.Stat(filepath.Join(out, "before")); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestNotes(t *testing.T) {
	for _, tt := range []struct{ name, changelog, want string }{
		{"the last section", "## [0.2.0] - 2026-11-27\n\n- a\n", "# Fairlead 0.2.0, 2026-11-27\n\n- a\n"},
		{"of several", "## [0.2.0] - 2026-11-27\n- a\n### b\n## [0.1.0] - 2026-11-26\n- c\n", "# Fairlead 0.2.0, 2026-11-27\n\n- a\n### b\n"},
		{"no date", "## [0.2.0]\n\n- a\n", ""},
		{"empty", "## [0.2.0] - 2026-11-27\n\n## [0.1.0] - 2026-11-26\n- c\n", ""},
		{"a version that it is part of", "## [0.2.0-rc.1] - 2026-11-27\n- a\n## [10.2.0] - 2026-11-27\n- b\n", ""},
		{"a dot is a dot", "## [0x2x0] - 2026-11-27\n- a\n", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := notes(tt.changelog, "0.2.0")
			if got != tt.want || (tt.want == "") != errors.Is(err, ErrChangelog) {
				t.Errorf("%q, %v; must be %q", got, err, tt.want)
			}
		})
	}
}

// TestStillUnreleased names a file of an installation that a new template would give the
// version of the source.
func TestStillUnreleased(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "new.yaml"), bytes.Repeat([]byte("image: fairlead:unreleased\n"), 2), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := allReleased(dir); err == nil || !strings.Contains(err.Error(), "new.yaml") {
		t.Errorf("error %v", err)
	}
}
