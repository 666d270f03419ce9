// Package release makes the files of a release: programs and images for each architecture,
// the Helm chart, the manifests, the notes, and the files that describe and verify them all.
//
// The steps are in the order of the files: check (may this source be released?), manifests,
// archive, describe. Two releases of one commit are the same bytes, wherever they are made.
package release
