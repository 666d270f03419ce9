package cniproto

import (
	"errors"
	"path"
	"strings"
	"syscall"

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

// varRun is what RunDir is called too, a symbolic link.
const varRun = "/var"

// ErrNoSpool says that a spool is not there. The daemon makes it before it plugs
// anything.
var ErrNoSpool = errors.New("there is no spool")

// SpoolDel writes a DEL to the spool, whole and durable or not at all. The same
// sandbox and interface again replace what is there. Nothing is written but into a
// directory as the daemon makes it: below RunDir, this user's, which is root, with mode
// 0700. Errors: ErrNoSpool, else what is wrong with it.
func SpoolDel(dir string, r Request) error {
	if r.Verb != VerbDel {
		return errors.New("spool " + r.Verb + ": only DEL can be carried out later")
	}
	if err := r.Validate(); err != nil {
		return err
	}
	spool, err := openSpool(dir)
	if err != nil {
		return err
	}
	defer spool.Close() //nolint:errcheck // what was written is synced
	if err := spool.ReplaceFile(SpoolName(r), SpoolTemp, r.Encode()); err != nil {
		return doing("write to the spool", err)
	}
	return nil
}

// Unspool takes a DEL that has been carried out from the spool. It is no error
// when it is not there.
func Unspool(dir string, r Request) error {
	spool, err := openSpool(dir)
	if err != nil {
		return err
	}
	defer spool.Close() //nolint:errcheck // nothing was written
	if err := spool.Remove(SpoolName(r)); err != nil {
		return doing("take a DEL from the spool", err)
	}
	return nil
}

// Spoolable tells whether the plugin would write into a directory of that name, made as
// the daemon makes it.
func Spoolable(dir string) bool {
	_, ok := belowRun(dir)
	return ok
}

func belowRun(dir string) (below string, ok bool) {
	return strings.CutPrefix(strings.TrimPrefix(path.Clean(dir), varRun), RunDir+"/")
}

func openSpool(dir string) (thin.File, error) {
	below, ok := belowRun(dir)
	if !ok {
		return thin.File{}, errors.New("must be below " + RunDir + ", as " + path.Join(path.Dir(DefaultSocket()), SpoolDir))
	}
	spool, err := thin.OpenOwn(RunDir, below)
	switch {
	case errors.Is(err, syscall.ENOENT):
		return spool, because{ErrNoSpool, err}
	case err != nil:
		return spool, doing("open the spool", err)
	}
	return spool, nil
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
