package release

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/Masterminds/semver/v3"

	"fairlead.dev/fairlead/tools/packaging/programs"
)

// Errors of a source that cannot be released.
var (
	ErrVersion   = errors.New("the version is wrong")
	ErrChanged   = errors.New("the source differs from its commit")
	ErrChangelog = errors.New("the changelog does not have the version")
)

// Number returns a version without its v, as charts and the changelog have it; errors:
// ErrVersion when it is not v and a semantic version.
func Number(version string) (string, error) {
	number, found := strings.CutPrefix(version, "v")
	parsed, err := semver.StrictNewVersion(number)
	if !found || err != nil || parsed.Metadata() != "" {
		return "", fmt.Errorf("%w: %q: must be v and a semantic version without build metadata, as v0.2.0 or v0.2.0-rc.1", ErrVersion, version)
	}
	return number, nil
}

// notes returns the notes of a version: its section of the changelog; errors: ErrChangelog
// when there is none.
func notes(changelog, number string) (string, error) {
	heading := regexp.MustCompile(`(?m)^## \[` + regexp.QuoteMeta(number) + `\] - (\d{4}-\d{2}-\d{2})$`).FindStringSubmatchIndex(changelog)
	if heading == nil {
		return "", fmt.Errorf("%w: CHANGELOG.md has no heading %q: rename \"## [Unreleased]\" to it, add an empty \"## [Unreleased]\" above, and commit",
			ErrChangelog, "## ["+number+"] - YYYY-MM-DD")
	}
	body, _, _ := strings.Cut(changelog[heading[1]:], "\n## [")
	if body = strings.TrimSpace(body); body == "" {
		return "", fmt.Errorf("%w: the section of %s in CHANGELOG.md is empty", ErrChangelog, number)
	}
	return "# Fairlead " + number + ", " + changelog[heading[2]:heading[3]] + "\n\n" + body + "\n", nil
}

// check returns the number and the notes of the version of a source; errors: ErrVersion,
// ErrChanged and ErrChangelog.
func check(ctx context.Context, s programs.Source) (number, text string, err error) {
	if number, err = Number(s.Version); err != nil {
		return "", "", err
	}
	changed, err := s.Changed(ctx)
	if err != nil {
		return "", "", err
	}
	if len(changed) > 0 {
		return "", "", fmt.Errorf("%w: commit or remove these files:\n%s", ErrChanged, strings.Join(changed, "\n"))
	}
	changelog, err := os.ReadFile(filepath.Join(s.Root, "CHANGELOG.md"))
	if err != nil {
		return "", "", err
	}
	text, err = notes(string(changelog), number)
	return number, text, err
}
