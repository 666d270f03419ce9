package images

import (
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"fairlead.dev/fairlead/tools/packaging/programs"
)

func about(digest v1.Hash, predicateType string, predicate any) (statement, error) {
	raw, err := programs.Statement([]programs.Subject{{Name: "fairlead", SHA256: digest.Hex}}, predicateType, predicate)
	return statement{predicate: predicateType, content: raw}, err
}

// contents returns the list of the contents of an image: each program in a directory with the Go modules
// that it was linked with, and each package of Debian.
func contents(s programs.Source, arch string, digest v1.Hash, dir string, debs []debPackage) (statement, error) {
	c := s.Contents("fairlead "+s.Version+" linux/"+arch, digest.Hex)
	image := c.Add(programs.Document, "DESCRIBES", "fairlead", s.Version, "pkg:oci/fairlead@sha256%3A"+digest.Hex+"?arch="+arch, "")
	for _, program := range programs.Names {
		if err := c.AddProgram(image, "CONTAINS", filepath.Join(dir, program), ""); err != nil {
			return statement{}, err
		}
	}
	for _, deb := range debs {
		c.Add(image, "CONTAINS", deb.name, deb.version, deb.purl(), deb.sum)
	}
	return about(digest, programs.SPDX, c.Document())
}

// provenance returns the statement of how an image was built.
func provenance(s programs.Source, arch string, digest v1.Hash, debs []debPackage) (statement, error) {
	var used []programs.Dependency
	for _, deb := range debs {
		used = append(used, programs.Dependency{URI: deb.purl(), Digest: map[string]string{"sha256": deb.sum}})
	}
	return about(digest, programs.Provenance, s.Provenance("images", "linux/"+arch, used))
}
