package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// about returns an in-toto statement about an image.
func about(digest v1.Hash, predicateType string, predicate any) (statement, error) {
	raw, err := json.Marshal(map[string]any{
		"_type":         "https://in-toto.io/Statement/v1",
		"subject":       []any{map[string]any{"name": "fairlead", "digest": map[string]string{digest.Algorithm: digest.Hex}}},
		"predicateType": predicateType,
		"predicate":     predicate,
	})
	return statement{predicate: predicateType, content: raw}, err
}

// contents returns the list of the contents of an image (SPDX 2.3): each program with the Go
// modules that it was linked with, by its own build information, and each package of Debian.
func (b *build) contents(arch string, digest v1.Hash, dir string, debs []debPackage) (statement, error) {
	doc := &v2_3.Document{
		SPDXVersion: v2_3.Version, DataLicense: v2_3.DataLicense, SPDXIdentifier: "DOCUMENT",
		DocumentName:      "fairlead " + b.version + " linux/" + arch,
		DocumentNamespace: "https://fairlead.dev/spdx/" + digest.Hex,
		CreationInfo: &v2_3.CreationInfo{
			Created: b.at.Format(time.RFC3339), Creators: []common.Creator{{CreatorType: "Tool", Creator: "fairlead-images"}},
		},
	}
	packages := map[common.ElementID]*v2_3.Package{}
	add := func(parent common.ElementID, relation, name, version, purl string) common.ElementID {
		id := common.ElementID("Package-" + regexp.MustCompile(`[^A-Za-z0-9.-]`).ReplaceAllString(name+"-"+version, "-"))
		if packages[id] == nil {
			packages[id] = &v2_3.Package{
				PackageSPDXIdentifier: id, PackageName: name, PackageVersion: version, PackageDownloadLocation: "NOASSERTION",
				PackageExternalReferences: []*v2_3.PackageExternalReference{{Category: "PACKAGE-MANAGER", RefType: "purl", Locator: purl}},
			}
		}
		doc.Relationships = append(doc.Relationships, &v2_3.Relationship{
			RefA: common.MakeDocElementID("", string(parent)), RefB: common.MakeDocElementID("", string(id)), Relationship: relation,
		})
		return id
	}
	image := add("DOCUMENT", "DESCRIBES", "fairlead", b.version, "pkg:oci/fairlead@sha256%3A"+digest.Hex+"?arch="+arch)
	for _, program := range programs {
		info, err := buildinfo.ReadFile(filepath.Join(dir, program))
		if err != nil {
			return statement{}, fmt.Errorf("the build information of %s: %w", program, err)
		}
		id := add(image, "CONTAINS", info.Path, b.version, "pkg:golang/"+info.Path+"@"+b.version)
		add(id, "DEPENDS_ON", "stdlib", info.GoVersion, "pkg:golang/stdlib@"+info.GoVersion[len("go"):])
		for _, m := range info.Deps {
			add(id, "DEPENDS_ON", m.Path, m.Version, "pkg:golang/"+m.Path+"@"+m.Version)
		}
	}
	for _, deb := range debs {
		id := add(image, "CONTAINS", deb.name, deb.version, "pkg:deb/debian/"+deb.name+"@"+deb.version+"?arch="+arch)
		packages[id].PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: deb.sum}}
	}
	for _, id := range slices.Sorted(maps.Keys(packages)) {
		doc.Packages = append(doc.Packages, packages[id])
	}
	return about(digest, "https://spdx.dev/Document", doc)
}

// provenance returns the statement of how an image was built (SLSA provenance v1). It is not
// signed: it describes the build and proves nothing.
func (b *build) provenance(arch string, digest v1.Hash, debs []debPackage) (statement, error) {
	dependencies := []any{map[string]any{"uri": "pkg:golang/stdlib@" + runtime.Version()[len("go"):], "name": "Go"}}
	if b.commit != "" {
		dependencies = append(dependencies, map[string]any{"name": "source", "digest": map[string]string{"gitCommit": b.commit}})
	}
	for _, deb := range debs {
		dependencies = append(dependencies, map[string]any{
			"uri": "pkg:deb/debian/" + deb.name + "@" + deb.version + "?arch=" + arch, "digest": map[string]string{"sha256": deb.sum},
		})
	}
	return about(digest, "https://slsa.dev/provenance/v1", map[string]any{
		"buildDefinition": map[string]any{
			"buildType":            "https://fairlead.dev/build/images/v1",
			"externalParameters":   map[string]any{"version": b.version, "platform": "linux/" + arch},
			"resolvedDependencies": dependencies,
		},
		"runDetails": map[string]any{"builder": map[string]any{"id": "https://fairlead.dev/build/images"}},
	})
}
