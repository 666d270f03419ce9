package cniproto

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"strconv"
	"strings"
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

// errNotOwn says that a directory may be somebody else's: it is not this user's, or
// others may change what is in it.
var errNotOwn = errors.New("must be a directory of this user alone, with mode 0700")

// SpoolDel writes a DEL to the spool, whole and durable or not at all. The same
// sandbox and interface again replace what is there. Nothing is written but into a
// directory as the daemon makes it: below RunDir, this user's, which is root, with mode
// 0700. Errors: ErrNoSpool, else what is wrong with it.
func SpoolDel(dir string, r Request) error {
	if r.Verb != VerbDel {
		return errors.New("spool " + r.Verb + ": only DEL can be carried out later")
	}
	if err := r.CheckEnvironment(); err != nil {
		return err
	}
	spool, err := openSpool(dir)
	if err != nil {
		return err
	}
	defer spool.Close() //nolint:errcheck // what was written is synced
	if err := replaceFile(spool, SpoolName(r), r.Encode()); err != nil {
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
	if err := spool.Remove(SpoolName(r)); err != nil && !errors.Is(err, fs.ErrNotExist) {
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

// openSpool opens a spool. No part of the way below RunDir, which is trusted, may be a
// symbolic link, all of it has to be this user's, and nobody else may write there.
func openSpool(dir string) (*os.Root, error) {
	below, ok := belowRun(dir)
	if !ok {
		return nil, errors.New("must be below " + RunDir + ", as " + path.Join(path.Dir(DefaultSocket()), SpoolDir))
	}
	at, err := os.OpenRoot(RunDir)
	whole, left := RunDir, below
	for err == nil && left != "" {
		var name string
		name, left, _ = strings.Cut(left, "/")
		whole = path.Join(whole, name)
		mask, want := fs.FileMode(0o022), fs.FileMode(0)
		if left == "" {
			mask, want = fs.ModePerm|fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky, 0o700
		}
		var next *os.Root
		next, err = openOwn(at, name, mask, want)
		_ = at.Close()
		at = next
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, because{ErrNoSpool, err}
	case err != nil:
		return nil, doing("open the spool: "+whole, err)
	}
	return at, nil
}

// openOwn opens a directory in another, in which only this user writes, so that it stays
// what it is. It has to be this user's, and of its mode the bits of mask those wanted.
func openOwn(in *os.Root, name string, mask, want fs.FileMode) (*os.Root, error) {
	info, err := in.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() || !isOwn(info) || info.Mode()&mask != want {
		return nil, errNotOwn
	}
	return in.OpenRoot(name)
}

// replaceFile writes a file with mode 0600, whole and durable or not at all, by way of
// one whose name begins with SpoolTemp.
func replaceFile(dir *os.Root, name string, content []byte) error {
	half := SpoolTemp + strconv.FormatUint(rand.Uint64(), 16)
	err := writeFile(dir, half, content)
	if err == nil {
		err = dir.Rename(half, name)
	}
	if err != nil {
		_ = dir.Remove(half)
		return err
	}
	self, err := dir.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(self.Sync(), self.Close())
}

func writeFile(dir *os.Root, name string, content []byte) error {
	file, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	return errors.Join(err, file.Sync(), file.Close())
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
	return r, ok && r.CheckEnvironment() == nil
}
