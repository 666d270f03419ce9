package images

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"fairlead.dev/fairlead/tools/packaging/programs"
)

// entry is a file, a directory or a symbolic link of a layer.
type entry struct {
	mode    int64
	content []byte
	link    string // the target of a symbolic link
	dir     bool
}

// files are the entries of a layer by their paths, without a slash at the beginning.
type files map[string]entry

// tripletOf are the names of architectures in Debian's directories of libraries.
var tripletOf = map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}

// ofPlugins are the parts of glibc that plugins of other networks are linked with, if they
// are not static. The daemon executes them from the node's directory.
var ofPlugins = []string{"libdl.so.2", "libm.so.6", "libpthread.so.0", "libresolv.so.2", "librt.so.1"}

// baseFiles returns the files of the base: nft with the libraries that it is linked with,
// certificates, the licences of all packages, and their names for scanners.
func baseFiles(ctx context.Context, debs []debPackage, arch string) (files, error) {
	all, base := files{}, files{
		"tmp/":       {dir: true, mode: 0o1777},
		"run/":       {dir: true, mode: 0o755},
		"var/run":    {link: "/run", mode: 0o777}, // runtimes name namespaces by it
		"etc/passwd": {content: []byte("root:x:0:0:root:/:/nonexistent\nnobody:x:65534:65534:nobody:/:/nonexistent\n"), mode: 0o644},
		"etc/group":  {content: []byte("root:x:0:\nnogroup:x:65534:\n"), mode: 0o644},
	}
	for _, deb := range debs {
		raw, err := output(ctx, "", "dpkg-deb", "--fsys-tarfile", deb.path)
		if err != nil {
			return nil, err
		}
		if err := all.addTar(raw); err != nil {
			return nil, fmt.Errorf("%s: %w", deb.path, err)
		}
		control, err := output(ctx, "", "dpkg-deb", "--field", deb.path)
		if err != nil {
			return nil, err
		}
		base["var/lib/dpkg/status.d/"+deb.name] = entry{content: control, mode: 0o644}
		licence := "usr/share/doc/" + deb.name + "/copyright"
		if base[licence], err = all.resolve(licence); err != nil {
			return nil, err
		}
	}
	if err := all.copyProgram("usr/sbin/nft", base, tripletOf[arch]); err != nil {
		return nil, err
	}
	for _, library := range ofPlugins {
		if err := all.copyProgram("lib/"+tripletOf[arch]+"/"+library, base, tripletOf[arch]); err != nil {
			return nil, err
		}
	}
	var authorities bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if strings.HasPrefix(name, "usr/share/ca-certificates/mozilla/") && strings.HasSuffix(name, ".crt") {
			authorities.Write(all[name].content)
		}
	}
	if authorities.Len() == 0 {
		return nil, errors.New("ca-certificates has no certificates")
	}
	base["etc/ssl/certs/ca-certificates.crt"] = entry{content: authorities.Bytes(), mode: 0o644}
	return base, nil
}

// addTar adds the files and links of an archive.
func (f files) addTar(raw []byte) error {
	for r := tar.NewReader(bytes.NewReader(raw)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path.Clean(h.Name), "/")
		switch h.Typeflag {
		case tar.TypeReg:
			content, err := io.ReadAll(r)
			if err != nil {
				return err
			}
			f[name] = entry{content: content, mode: h.Mode}
		case tar.TypeSymlink:
			f[name] = entry{link: h.Linkname, mode: 0o777}
		default: // layers have the directories of their files anyway
		}
	}
}

// target returns the path that a symbolic link leads to.
func target(name, link string) string {
	if path.IsAbs(link) {
		return strings.TrimPrefix(path.Clean(link), "/")
	}
	return path.Join(path.Dir(name), link)
}

// resolve returns a file behind symbolic links.
func (f files) resolve(name string) (entry, error) {
	for range 8 {
		e, found := f[name]
		if !found {
			break
		}
		if e.link == "" {
			return e, nil
		}
		name = target(name, e.link)
	}
	return entry{}, fmt.Errorf("the packages have no file %s", name)
}

// copyProgram copies a program or library into a base, with its links, its interpreter and
// the libraries that it is linked with.
func (f files) copyProgram(name string, base files, triplet string) error {
	if _, found := base[name]; found {
		return nil
	}
	e, found := f[name]
	if !found {
		return fmt.Errorf("the packages have no file %s", name)
	}
	base[name] = e
	if e.link != "" {
		return f.copyProgram(target(name, e.link), base, triplet)
	}
	program, err := elf.NewFile(bytes.NewReader(e.content))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	needed, err := program.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, p := range program.Progs {
		if p.Type == elf.PT_INTERP {
			raw, err := io.ReadAll(p.Open())
			if err != nil {
				return err
			}
			if err := f.copyProgram(strings.Trim(string(raw), "/\x00"), base, triplet); err != nil {
				return err
			}
		}
	}
	for _, library := range needed {
		at := "lib/" + triplet + "/" + library
		if _, found := f[at]; !found {
			at = "usr/lib/" + triplet + "/" + library
		}
		if err := f.copyProgram(at, base, triplet); err != nil {
			return fmt.Errorf("%s needs %s: %w", name, library, err)
		}
	}
	return nil
}

// ownFiles returns the programs of a directory, and the licences.
func ownFiles(root, dir string) (files, error) {
	out := files{}
	for _, program := range programs.Names {
		content, err := os.ReadFile(filepath.Join(dir, program))
		if err != nil {
			return nil, err
		}
		out["usr/local/bin/"+program] = entry{content: content, mode: 0o755}
	}
	for _, name := range programs.Licences {
		content, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return nil, err
		}
		out["usr/share/doc/fairlead/"+name] = entry{content: content, mode: 0o644}
	}
	return out, nil
}
