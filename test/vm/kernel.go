package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"fairlead.dev/fairlead/test/harness"
)

// kernelPackage depends on the package of the newest kernel of a Debian release. The kernel
// of the smaller linux-image-cloud-amd64 has no 9p.
const kernelPackage = "linux-image-amd64"

// Files of the kernel's directory.
const (
	vmlinuxFile = "vmlinux"
	modulesDir  = "modules"
	// manifestFile names the kernel and the modules; it makes the directory complete.
	manifestFile = "manifest"
)

// lackError names a requirement that this machine lacks, with the way to get it.
type lackError struct{ error }

func (e lackError) Unwrap() error { return e.error }

// manifest is the content of manifestFile.
func manifest(release string) string {
	return release + "\n" + strings.Join(wantedModules, "\n") + "\n"
}

// kernelRelease returns the release of the kernel in a directory, "" if the directory is
// missing or has other modules than these.
func kernelRelease(dir string) string {
	raw, _ := os.ReadFile(filepath.Join(dir, manifestFile))
	release, _, _ := strings.Cut(string(raw), "\n")
	if release == "" || string(raw) != manifest(release) {
		return ""
	}
	return release
}

// ensureKernel makes the directory of the kernel from Debian's package if it is missing.
// Errors: lackError if the package is out of reach.
func ensureKernel(ctx context.Context, dir string, report harness.Reporter) error {
	if kernelRelease(dir) != "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("make the directory of the kernel: %w", err)
	}
	work, err := os.MkdirTemp(filepath.Dir(dir), "kernel-")
	if err != nil {
		return fmt.Errorf("make a directory for the kernel's package: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	name, err := kernelName(ctx)
	if err != nil {
		return err
	}
	report.Say("downloading %s, some 70 MB", name)
	if _, err := output(ctx, work, "apt-get", "download", name); err != nil {
		return lackError{fmt.Errorf("the kernel's package, from Debian's archive: %w", err)}
	}
	report.Say("unpacking it")
	debs, err := filepath.Glob(filepath.Join(work, "*.deb"))
	if err != nil || len(debs) != 1 {
		return fmt.Errorf("apt-get download left %q in its directory; want one package", debs)
	}
	tree := filepath.Join(work, "tree")
	if _, err := output(ctx, work, "dpkg-deb", "-x", debs[0], tree); err != nil {
		return err
	}
	release := strings.TrimPrefix(name, "linux-image-")
	made := filepath.Join(work, "kernel")
	if err := unpackKernel(ctx, tree, release, made); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.Rename(made, dir); err != nil && kernelRelease(dir) == "" { // another process may have been faster
		return err
	}
	report.Say("the kernel %s is in %s", release, dir)
	return nil
}

// kernelName returns the name of the package that kernelPackage depends on. As root it
// updates the lists of packages if they lack it.
func kernelName(ctx context.Context) (string, error) {
	name, err := dependency(ctx)
	if err != nil && os.Geteuid() == 0 && ctx.Err() == nil {
		_, updateErr := output(ctx, "", "apt-get", "update", "-q")
		if name, err = dependency(ctx); err != nil {
			err = errors.Join(err, updateErr)
		}
	}
	if err != nil {
		return "", lackError{fmt.Errorf("the package %s of Debian: on Debian, apt-get update: %w", kernelPackage, err)}
	}
	return name, nil
}

func dependency(ctx context.Context) (string, error) {
	out, err := output(ctx, "", "apt-cache", "depends", kernelPackage)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(out) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: ")
		if ok && strings.HasPrefix(name, "linux-image-") {
			return name, nil
		}
	}
	return "", fmt.Errorf("apt-cache depends %s names no kernel: %q", kernelPackage, out)
}

// unpackKernel makes the directory of the kernel from the files of its package.
func unpackKernel(ctx context.Context, tree, release, dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, modulesDir), 0o755); err != nil {
		return err
	}
	image, err := os.ReadFile(filepath.Join(tree, "boot", "vmlinuz-"+release))
	if err != nil {
		return err
	}
	vmlinux, err := vmlinuxOf(ctx, image)
	if err != nil {
		return fmt.Errorf("unpack boot/vmlinuz-%s: %w", release, err)
	}
	if err := os.WriteFile(filepath.Join(dir, vmlinuxFile), vmlinux, 0o644); err != nil {
		return err
	}
	lib := filepath.Join(tree, "lib", "modules", release)
	if _, err := os.Stat(lib); errors.Is(err, os.ErrNotExist) {
		lib = filepath.Join(tree, "usr", "lib", "modules", release) // since Debian 13
	}
	modules, err := modulesOf(ctx, lib, wantedModules)
	if err != nil {
		return err
	}
	for i, m := range modules {
		file := filepath.Join(dir, modulesDir, fmt.Sprintf("%02d-%s.ko", i, m.name))
		if err := os.WriteFile(file, m.content, 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, manifestFile), []byte(manifest(release)), 0o644)
}

// vmlinuxOf returns the kernel that is compressed in an image of the x86 boot protocol.
// QEMU boots it directly, without the seconds in which an emulated processor decompresses
// it.
func vmlinuxOf(ctx context.Context, image []byte) ([]byte, error) {
	const (
		setupSectors  = 0x1f1
		magic         = 0x202
		payloadOffset = 0x248
		payloadLength = 0x24c
		headerEnd     = 0x250
		sizeLength    = 4 // the size of the kernel follows the compressed kernel
	)
	if len(image) < headerEnd || string(image[magic:magic+4]) != "HdrS" {
		return nil, errors.New(`it is no image of a kernel: it lacks "HdrS" at 0x202`)
	}
	sectors := int(image[setupSectors])
	if sectors == 0 {
		sectors = 4
	}
	from := (sectors+1)*512 + int(binary.LittleEndian.Uint32(image[payloadOffset:]))
	length := int(binary.LittleEndian.Uint32(image[payloadLength:]))
	if length <= sizeLength || from+length > len(image) {
		return nil, fmt.Errorf("its header places the kernel at %d to %d; it has %d bytes", from, from+length, len(image))
	}
	payload := image[from : from+length]
	size := int(binary.LittleEndian.Uint32(payload[length-sizeLength:]))
	if bytes.HasPrefix(payload, []byte(gzipMagic)) {
		size = -1 // the size is a part of gzip's format
	} else {
		payload = payload[:length-sizeLength]
	}
	vmlinux, err := decompress(ctx, payload)
	if err != nil {
		return nil, err
	}
	if size >= 0 && len(vmlinux) != size {
		return nil, fmt.Errorf("the kernel has %d bytes decompressed, and %d by its header", len(vmlinux), size)
	}
	return vmlinux, nil
}

const (
	gzipMagic = "\x1f\x8b"
	xzMagic   = "\xfd7zXZ\x00"
	zstdMagic = "\x28\xb5\x2f\xfd"
	elfMagic  = "\x7fELF"
)

// decompress returns the content of a compressed or uncompressed file.
func decompress(ctx context.Context, raw []byte) ([]byte, error) {
	switch {
	case bytes.HasPrefix(raw, []byte(elfMagic)):
		return raw, nil
	case bytes.HasPrefix(raw, []byte(gzipMagic)):
		r, err := gzip.NewReader(bytes.NewReader(raw))
		if err != nil {
			return nil, err
		}
		return io.ReadAll(r)
	case bytes.HasPrefix(raw, []byte(xzMagic)):
		return filter(ctx, raw, "xz", "xz-utils")
	case bytes.HasPrefix(raw, []byte(zstdMagic)):
		return filter(ctx, raw, "zstd", "zstd")
	}
	return nil, fmt.Errorf("it begins with %x; want gzip, xz, zstd or ELF", raw[:min(len(raw), 6)])
}

func filter(ctx context.Context, raw []byte, program, pkg string) ([]byte, error) {
	if _, err := exec.LookPath(program); err != nil {
		return nil, lackError{fmt.Errorf("the program %s: on Debian and Ubuntu, apt-get install -y --no-install-recommends %s", program, pkg)}
	}
	var out, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, program, "-dc")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(raw), &out, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s -dc: %w: %s", program, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out.Bytes(), nil
}

// output runs a program and returns its output, which is in the error too.
func output(ctx context.Context, dir, program string, args ...string) (string, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), errors.Join(err, context.Cause(ctx)), bytes.TrimSpace(out.Bytes()))
	}
	return out.String(), nil
}
