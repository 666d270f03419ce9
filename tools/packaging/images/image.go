package images

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"fairlead.dev/fairlead/tools/packaging/programs"
)

// platform is the image for an architecture and its attestations.
type platform struct {
	arch                string
	image, attestations v1.Image
}

// user is nobody. The DaemonSet of fairlead-node replaces it by root.
const user = "65534:65534"

// newPlatform makes the image for an architecture of its base and of own files, and the
// attestations of the programs in dir and of the packages.
func newPlatform(s programs.Source, arch string, base Base, own files, dir string) (platform, error) {
	var layers []v1.Layer
	for _, f := range []files{base.files, own} {
		layer, err := f.layer(s.At)
		if err != nil {
			return platform{}, err
		}
		layers = append(layers, layer)
	}
	image, err := mutate.AppendLayers(ociImage(), layers...)
	if err != nil {
		return platform{}, err
	}
	labels := map[string]string{
		"org.opencontainers.image.title": "fairlead", "org.opencontainers.image.version": s.Version,
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
	if s.Commit != "" {
		labels["org.opencontainers.image.revision"] = s.Commit
	}
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		Architecture: arch, OS: "linux", Created: v1.Time{Time: s.At},
		RootFS: rootFSOf(image), History: []v1.History{
			{Created: v1.Time{Time: s.At}, CreatedBy: "packages of Debian, pinned by tools/packaging/images/debian.lock"},
			{Created: v1.Time{Time: s.At}, CreatedBy: "programs of Fairlead"},
		},
		Config: v1.Config{
			User: user, WorkingDir: "/", Labels: labels,
			Env: []string{"PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"},
		},
	})
	if err != nil {
		return platform{}, err
	}
	digest, err := image.Digest()
	if err != nil {
		return platform{}, err
	}
	list, err := contents(s, arch, digest, dir, base.debs)
	if err != nil {
		return platform{}, err
	}
	built, err := provenance(s, arch, digest, base.debs)
	if err != nil {
		return platform{}, err
	}
	attestations, err := attest(image, list, built)
	return platform{arch: arch, image: image, attestations: attestations}, err
}

func ociImage() v1.Image {
	return mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
}

func rootFSOf(image v1.Image) v1.RootFS {
	config, err := image.ConfigFile()
	if err != nil {
		return v1.RootFS{} // mutate.ConfigFile reports the error
	}
	return config.RootFS
}

// layer returns the files as a layer: sorted, of root, and of one time.
func (f files) layer(at time.Time) (v1.Layer, error) {
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	made := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(f)) {
		for _, dir := range parents(name) {
			if _, own := f[dir]; own || made[dir] {
				continue
			}
			made[dir] = true
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755, ModTime: at, Format: tar.FormatPAX}); err != nil {
				return nil, err
			}
		}
		e := f[name]
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: e.mode, Size: int64(len(e.content)), ModTime: at, Format: tar.FormatPAX}
		switch {
		case e.dir:
			h.Typeflag = tar.TypeDir
		case e.link != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buffer.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer))
}

// parents returns the directories of a path, the highest first, each with a slash at its end.
func parents(name string) (out []string) {
	for dir := path.Dir(strings.TrimSuffix(name, "/")); dir != "."; dir = path.Dir(dir) {
		out = append([]string{dir + "/"}, out...)
	}
	return out
}

// statement is an in-toto statement and the type of its predicate.
type statement struct {
	predicate string
	content   []byte
}

// inToto is the media type of an in-toto statement.
const inToto = "application/vnd.in-toto+json"

// attest returns a manifest of statements about an image. BuildKit and Docker find it in the
// index, by annotations; registries list it as a referrer, by its subject.
func attest(image v1.Image, statements ...statement) (v1.Image, error) {
	subject, err := partial.Descriptor(image)
	if err != nil {
		return nil, err
	}
	out := ociImage()
	for _, s := range statements {
		out, err = mutate.Append(out, mutate.Addendum{
			Layer: static.NewLayer(s.content, inToto), MediaType: inToto,
			Annotations: map[string]string{"in-toto.io/predicate-type": s.predicate},
		})
		if err != nil {
			return nil, err
		}
	}
	config, err := out.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.Architecture, config.OS, config.History, config.Created = "unknown", "unknown", nil, v1.Time{}
	if out, err = mutate.ConfigFile(out, config); err != nil {
		return nil, err
	}
	return mutate.Subject(out, v1.Descriptor{MediaType: subject.MediaType, Digest: subject.Digest, Size: subject.Size}).(v1.Image), nil
}

// writeLayout writes the platforms as an OCI layout, with the version as the name of the
// index. The layout replaces an earlier one. It returns the digest of the index.
func writeLayout(dir, version string, platforms []platform) (v1.Hash, error) {
	var adds []mutate.IndexAddendum
	for _, p := range platforms {
		digest, err := p.image.Digest()
		if err != nil {
			return v1.Hash{}, err
		}
		adds = append(adds,
			mutate.IndexAddendum{Add: p.image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: p.arch}}},
			mutate.IndexAddendum{Add: p.attestations, Descriptor: v1.Descriptor{
				Platform:    &v1.Platform{OS: "unknown", Architecture: "unknown"},
				Annotations: map[string]string{"vnd.docker.reference.type": "attestation-manifest", "vnd.docker.reference.digest": digest.String()},
			}})
	}
	index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), adds...)
	digest, err := index.Digest()
	if err != nil {
		return v1.Hash{}, err
	}
	fresh := dir + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return v1.Hash{}, err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil { //nolint:gosec // a folder of the source
		return v1.Hash{}, err
	}
	l, err := layout.Write(fresh, empty.Index)
	if err != nil {
		return v1.Hash{}, err
	}
	if err := l.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": version})); err != nil {
		return v1.Hash{}, fmt.Errorf("write %s: %w", fresh, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return v1.Hash{}, err
	}
	return digest, os.Rename(fresh, dir)
}
