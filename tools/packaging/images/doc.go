// Package images builds the image of Fairlead as an OCI layout, for amd64 and arm64, without
// a container engine and without a registry.
//
// Its base are the files that nft needs, and certificates, from packages of Debian that
// debian.lock pins by digest. Two builds of one source are the same bytes. Each platform has
// an attestation manifest, as BuildKit makes it, with a list of contents and the provenance.
package images
