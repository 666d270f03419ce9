package programs

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"time"

	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// Types of predicates.
const (
	SPDX       = "https://spdx.dev/Document"
	Provenance = "https://slsa.dev/provenance/v1"
)

// Document is the element that describes all others in a list of contents.
const Document common.ElementID = "DOCUMENT"

// Contents is a list of contents (SPDX 2.3).
type Contents struct {
	source   Source
	doc      *v2_3.Document
	packages map[common.ElementID]*v2_3.Package
}

// Contents returns an empty list with a title. The digest of the described files makes its
// identifier unique.
func (s Source) Contents(title, digest string) *Contents {
	return &Contents{source: s, packages: map[common.ElementID]*v2_3.Package{}, doc: &v2_3.Document{
		SPDXVersion: v2_3.Version, DataLicense: v2_3.DataLicense, SPDXIdentifier: Document,
		DocumentName:      title,
		DocumentNamespace: "https://fairlead.dev/spdx/" + digest,
		CreationInfo: &v2_3.CreationInfo{
			Created: s.At.Format(time.RFC3339), Creators: []common.Creator{{CreatorType: "Tool", Creator: "fairlead-packaging"}},
		},
	}}
}

// Add adds a package and its relation to a parent. The SHA-256 may be empty.
func (c *Contents) Add(parent common.ElementID, relation, name, version, purl, sum string) common.ElementID {
	id := common.ElementID("Package-" + regexp.MustCompile(`[^A-Za-z0-9.-]`).ReplaceAllString(name+"-"+version, "-"))
	if c.packages[id] == nil {
		c.packages[id] = &v2_3.Package{
			PackageSPDXIdentifier: id, PackageName: name, PackageVersion: version, PackageDownloadLocation: "NOASSERTION",
			PackageExternalReferences: []*v2_3.PackageExternalReference{{Category: "PACKAGE-MANAGER", RefType: "purl", Locator: purl}},
		}
		if sum != "" {
			c.packages[id].PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: sum}}
		}
	}
	c.doc.Relationships = append(c.doc.Relationships, &v2_3.Relationship{
		RefA: common.MakeDocElementID("", string(parent)), RefB: common.MakeDocElementID("", string(id)), Relationship: relation,
	})
	return id
}

// AddProgram adds a program with the Go modules that it was linked with, by its own build
// information.
func (c *Contents) AddProgram(parent common.ElementID, relation, path, sum string) error {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return fmt.Errorf("the build information of %s: %w", path, err)
	}
	version := c.source.Version
	id := c.Add(parent, relation, info.Path, version, "pkg:golang/"+info.Path+"@"+version, sum)
	c.Add(id, "DEPENDS_ON", "stdlib", info.GoVersion, "pkg:golang/stdlib@"+info.GoVersion[len("go"):], "")
	for _, m := range info.Deps {
		c.Add(id, "DEPENDS_ON", m.Path, m.Version, "pkg:golang/"+m.Path+"@"+m.Version, "")
	}
	return nil
}

// Document returns the list, sorted.
func (c *Contents) Document() *v2_3.Document {
	c.doc.Packages = nil
	for _, id := range slices.Sorted(maps.Keys(c.packages)) {
		c.doc.Packages = append(c.doc.Packages, c.packages[id])
	}
	return c.doc
}

// Subject is a thing that a statement is about, with its SHA-256.
type Subject struct{ Name, SHA256 string }

// Statement returns an in-toto statement about things.
func Statement(subjects []Subject, predicateType string, predicate any) ([]byte, error) {
	var about []any
	for _, s := range subjects {
		about = append(about, map[string]any{"name": s.Name, "digest": map[string]string{"sha256": s.SHA256}})
	}
	return json.Marshal(map[string]any{
		"_type": "https://in-toto.io/Statement/v1", "subject": about, "predicateType": predicateType, "predicate": predicate,
	})
}

// Dependency is a thing that a build used, in the words of SLSA.
type Dependency struct {
	URI    string            `json:"uri,omitempty"`
	Name   string            `json:"name,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

// Provenance returns a description of a build (SLSA provenance v1): its name ("images" or
// "release"), its platform, which is empty for a build of all, and the things that it used beside
// Go and the source. It is not signed, so it proves nothing.
func (s Source) Provenance(built, platform string, more []Dependency) any {
	dependencies := []Dependency{{URI: "pkg:golang/stdlib@" + runtime.Version()[len("go"):], Name: "Go"}}
	if s.Commit != "" {
		dependencies = append(dependencies, Dependency{Name: "source", Digest: map[string]string{"gitCommit": s.Commit}})
	}
	parameters := map[string]any{"version": s.Version}
	if platform != "" {
		parameters["platform"] = platform
	}
	return map[string]any{
		"buildDefinition": map[string]any{
			"buildType":            "https://fairlead.dev/build/" + built + "/v1",
			"externalParameters":   parameters,
			"resolvedDependencies": append(dependencies, more...),
		},
		"runDetails": map[string]any{"builder": map[string]any{"id": "https://fairlead.dev/build/" + built}},
	}
}
