package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// The images exist only here; no registry has the domain (RFC 2606).
const (
	pauseImage  = "e2e.invalid/pause:1"
	serverImage = "e2e.invalid/server:1"
	// fairleadImage is the image's name without its tag, as in the operator's
	// kustomization.
	fairleadImage    = "e2e.invalid/fairlead"
	fairleadImageTag = "1"
	oldImageTag      = "0" // of the version in oldDir
)

// image is one layer of files and a command.
type image struct {
	name       string
	entrypoint []string
	cmd        []string
	env        []string
	files      []member
}

// images returns the images: two of pods, with the same program under different commands,
// and Fairlead's.
func images(programs string) ([]image, error) {
	server, err := os.ReadFile(filepath.Join(programs, "e2e-server"))
	if err != nil {
		return nil, fmt.Errorf("make the images: %w", err)
	}
	layer := []member{{name: "server", mode: 0o755, content: server}}
	ours, err := fairleadOf(programs, fairleadImageTag)
	if err != nil {
		return nil, err
	}
	return []image{
		{name: pauseImage, entrypoint: []string{"/server", "pause"}, files: layer},
		{name: serverImage, entrypoint: []string{"/server"}, files: layer},
		ours,
	}, nil
}

// fairleadOf returns Fairlead's image with a tag, of the programs in a directory.
func fairleadOf(programs, tag string) (image, error) {
	files, err := fairleadFiles(programs)
	if err != nil {
		return image{}, fmt.Errorf("make the image %s:%s: %w", fairleadImage, tag, err)
	}
	return image{
		name: fairleadImage + ":" + tag, files: files,
		env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
	}, nil
}

// fairleadFiles returns the files that tools/packaging/images puts into the image. Of the
// distribution it has only /var/run, by which runtimes name namespaces, and nft with its
// libraries, which are this machine's.
func fairleadFiles(programs string) ([]member, error) {
	paths := map[string]string{}
	for _, name := range []string{"fairlead-controller", "fairlead-node", "fairlead-cni", "fairlead"} {
		paths["usr/local/bin/"+name] = filepath.Join(programs, name)
	}
	nft, err := exec.LookPath("nft")
	if err != nil {
		return nil, err
	}
	paths["usr/sbin/nft"] = nft
	libraries, err := exec.Command("ldd", nft).Output()
	if err != nil {
		return nil, fmt.Errorf("ldd %s: %w", nft, err)
	}
	for _, library := range sharedObjects(string(libraries)) {
		paths[strings.TrimPrefix(library, "/")] = library
	}
	files := []member{{name: "var/run", mode: 0o777, link: "/run"}}
	for _, name := range slices.Sorted(maps.Keys(paths)) {
		content, err := os.ReadFile(paths[name])
		if err != nil {
			return nil, err
		}
		files = append(files, member{name: name, mode: 0o755, content: content})
	}
	return files, nil
}

// sharedObjects returns the files in the output of ldd(1), including the program's
// interpreter.
func sharedObjects(ldd string) []string {
	var out []string
	for _, match := range regexp.MustCompile(`(?m)(?:^\s*|=> )(/\S+) \(0x`).FindAllStringSubmatch(ldd, -1) {
		out = append(out, match[1])
	}
	return out
}

// writeImages writes images into an archive, like `docker save`.
func writeImages(path string, images []image) error {
	type manifest struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	var (
		manifests []manifest
		members   []member
		seen      = map[string]bool{}
	)
	add := func(m member) {
		if !seen[m.name] {
			seen[m.name] = true
			members = append(members, m)
		}
	}
	for _, i := range images {
		layer, err := archive(i.files...)
		if err != nil {
			return err
		}
		sum := digest(layer)
		config, err := json.Marshal(map[string]any{
			"architecture": runtime.GOARCH, "os": runtime.GOOS,
			"config": map[string]any{"Entrypoint": i.entrypoint, "Cmd": i.cmd, "Env": i.env, "WorkingDir": "/"},
			"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + sum}},
		})
		if err != nil {
			return fmt.Errorf("make the images: %w", err)
		}
		m := manifest{Config: digest(config) + ".json", RepoTags: []string{i.name}, Layers: []string{sum + ".tar"}}
		add(member{name: m.Layers[0], mode: 0o644, content: layer})
		add(member{name: m.Config, mode: 0o644, content: config})
		manifests = append(manifests, m)
	}
	list, err := json.Marshal(manifests)
	if err != nil {
		return fmt.Errorf("make the images: %w", err)
	}
	whole, err := archive(append(members, member{name: "manifest.json", mode: 0o644, content: list})...)
	if err != nil {
		return err
	}
	return os.WriteFile(path, whole, 0o600)
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// member is a file in an archive, or a symbolic link.
type member struct {
	name    string
	mode    int64
	content []byte
	link    string // target of a symbolic link; empty for a file
}

func archive(members ...member) ([]byte, error) {
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for _, m := range members {
		header := &tar.Header{Name: m.name, Mode: m.mode, Size: int64(len(m.content)), Typeflag: tar.TypeReg}
		if m.link != "" {
			header.Typeflag, header.Linkname = tar.TypeSymlink, m.link
		}
		err := w.WriteHeader(header)
		if err == nil {
			_, err = w.Write(m.content)
		}
		if err != nil {
			return nil, fmt.Errorf("make the images: %w", err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("make the images: %w", err)
	}
	return buffer.Bytes(), nil
}
