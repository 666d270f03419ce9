package cniproto

import (
	"errors"
	"path"
	"strings"

	"fairlead.dev/fairlead/internal/cniproto/thin"
)

const (
	// SpoolSuffix is how the name of a DEL's file ends.
	SpoolSuffix = ".json"
	// SpoolTemp is how the names of files begin that are being written.
	SpoolTemp = ".del-"
	// spoolSeparator stands between container ID and interface. It can be in no
	// container ID, so that two sandboxes never share a file.
	spoolSeparator = "@"
)

// SpoolDel writes a DEL to the spool, whole and durable or not at all. The same
// sandbox and interface again replace what is there.
func SpoolDel(dir string, r Request) error {
	if r.Verb != VerbDel {
		return errors.New("spool " + r.Verb + ": only DEL can be carried out later")
	}
	if err := r.Validate(); err != nil {
		return err
	}
	if err := thin.ReplaceFile(dir, SpoolName(r), SpoolTemp, r.Encode()); err != nil {
		return doing("write to the spool", err)
	}
	return nil
}

// Unspool takes a DEL that has been carried out from the spool. It is no error
// when it is not there.
func Unspool(dir string, r Request) error {
	if err := thin.Remove(path.Join(dir, SpoolName(r))); err != nil {
		return doing("take a DEL from the spool", err)
	}
	return nil
}

// SpoolName is the name of a DEL's file. It begins with the separator, where a
// container ID would, for addresses of another plugin's interface.
func SpoolName(r Request) string {
	if r.IPAM != "" {
		return spoolSeparator + r.ContainerID + spoolSeparator + r.IfName + SpoolSuffix
	}
	return r.ContainerID + spoolSeparator + r.IfName + SpoolSuffix
}

// SpoolNamed makes a DEL of a file's name.
func SpoolNamed(name string) (Request, bool) {
	r := Request{Verb: VerbDel}
	name = strings.TrimSuffix(name, SpoolSuffix)
	if rest, ipam := strings.CutPrefix(name, spoolSeparator); ipam {
		r.IPAM, name = IPAMPrograms[0], rest
	}
	var ok bool
	r.ContainerID, r.IfName, ok = strings.Cut(name, spoolSeparator)
	return r, ok && r.Validate() == nil
}
