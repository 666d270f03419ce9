package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
)

// The images exist nowhere but here; no registry knows the domain (RFC 2606).
const (
	pauseImage  = "e2e.invalid/pause:1"
	serverImage = "e2e.invalid/server:1"
)

// writeImages writes an archive, as `docker save` does, with the two images.
// Both are the one program under another command.
func writeImages(path, program string) error {
	raw, err := os.ReadFile(program)
	if err != nil {
		return fmt.Errorf("make the images: %w", err)
	}
	layer, err := archive(member{"server", 0o755, raw})
	if err != nil {
		return err
	}
	sum := sha256.Sum256(layer)
	type manifest struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	var (
		manifests []manifest
		members   = []member{{"layer.tar", 0o644, layer}}
	)
	for name, args := range map[string][]string{pauseImage: {"/server", "pause"}, serverImage: {"/server"}} {
		config, err := json.Marshal(map[string]any{
			"architecture": runtime.GOARCH, "os": runtime.GOOS,
			"config": map[string]any{"Entrypoint": args, "WorkingDir": "/"},
			"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
		})
		if err != nil {
			return fmt.Errorf("make the images: %w", err)
		}
		digest := sha256.Sum256(config)
		file := hex.EncodeToString(digest[:]) + ".json"
		members = append(members, member{file, 0o644, config})
		manifests = append(manifests, manifest{Config: file, RepoTags: []string{name}, Layers: []string{"layer.tar"}})
	}
	list, err := json.Marshal(manifests)
	if err != nil {
		return fmt.Errorf("make the images: %w", err)
	}
	whole, err := archive(append(members, member{"manifest.json", 0o644, list})...)
	if err != nil {
		return err
	}
	return os.WriteFile(path, whole, 0o600)
}

// member is a file in an archive.
type member struct {
	name    string
	mode    int64
	content []byte
}

func archive(members ...member) ([]byte, error) {
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for _, m := range members {
		header := &tar.Header{Name: m.name, Mode: m.mode, Size: int64(len(m.content)), Typeflag: tar.TypeReg}
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
