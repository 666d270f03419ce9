package cniproto

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"strconv"
	"strings"
)

const (
	// SpoolSuffix is the suffix of the names of spooled DELs.
	SpoolSuffix = ".json"
	// SpoolTemp is the prefix of the names of files that are being written.
	SpoolTemp = ".del-"
	// spoolSeparator separates container ID and interface in a file's name. No container
	// ID contains it, so that two sandboxes never share a file.
	spoolSeparator = "@"
)

// varRun is the directory of another path to RunDir: /var/run is a symbolic link to /run.
const varRun = "/var"

// ErrNoSpool means that a spool does not exist. The daemon creates it before it plugs any
// interface.
var ErrNoSpool = errors.New("there is no spool")

// errNotOwn means that the path is no directory, or that another user owns it or has
// access to it.
var errNotOwn = errors.New("must be a directory of this user alone, with mode 0700")

// SpoolDel writes a DEL to the spool. The file replaces an earlier DEL of the same sandbox
// and interface. It is complete and durable once SpoolDel returns nil; an error leaves no
// incomplete file. SpoolDel only writes into a directory as the daemon creates it: below
// RunDir, owned by this user, which is root, with mode 0700. Errors: ErrNoSpool if there
// is no spool; *Error if the environment of r is wrong; otherwise the reason why the DEL
// cannot be written.
func SpoolDel(dir string, r Request) error {
	if r.Verb != VerbDel {
		return fmt.Errorf("spool %s: only DEL can be carried out later", r.Verb)
	}
	if err := r.checkEnvironment(); err != nil {
		return err
	}
	content, err := r.Encode()
	if err != nil {
		return err
	}
	spool, err := openSpool(dir)
	if err != nil {
		return err
	}
	defer spool.Close() //nolint:errcheck // what was written is synced
	if err := replaceFile(spool, SpoolName(r), content); err != nil {
		return fmt.Errorf("write to the spool: %w", err)
	}
	return nil
}

// Unspool removes a DEL from the spool after it has been carried out. It returns nil if the
// spool does not hold the DEL. Errors: ErrNoSpool if there is no spool.
func Unspool(dir string, r Request) error {
	spool, err := openSpool(dir)
	if err != nil {
		return err
	}
	defer spool.Close() //nolint:errcheck // nothing was written
	if err := spool.Remove(SpoolName(r)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("take a DEL from the spool: %w", err)
	}
	return nil
}

// Spoolable reports whether dir can be a spool: the plugin only writes below RunDir.
func Spoolable(dir string) bool {
	_, ok := belowRun(dir)
	return ok
}

// belowRun returns dir relative to RunDir; ok reports whether dir is below RunDir.
func belowRun(dir string) (below string, ok bool) {
	return strings.CutPrefix(strings.TrimPrefix(path.Clean(dir), varRun), RunDir+"/")
}

// openSpool opens a spool. It trusts RunDir itself. Below RunDir, each directory of the
// path must be owned by this user and writable by no other user, and none may be a
// symbolic link. The last one must have mode 0700.
func openSpool(dir string) (*os.Root, error) {
	below, ok := belowRun(dir)
	if !ok {
		return nil, fmt.Errorf("must be below %s, as %s", RunDir, DefaultEndpoint().Spool)
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
		return nil, fmt.Errorf("%w: %w", ErrNoSpool, err)
	case err != nil:
		return nil, fmt.Errorf("open the spool: %s: %w", whole, err)
	}
	return at, nil
}

// openOwn opens the directory name in the directory in. It must be owned by this user, and
// its mode must be want in the bits of mask. Only this user may write to in, so that no
// other user can replace the directory after the check.
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

// replaceFile writes a file with mode 0600 under a name that begins with SpoolTemp, syncs
// it and renames it, so that no reader sees an incomplete file.
func replaceFile(dir *os.Root, name string, content []byte) error {
	temp := SpoolTemp + strconv.FormatUint(rand.Uint64(), 16)
	err := writeFile(dir, temp, content)
	if err == nil {
		err = dir.Rename(temp, name)
	}
	if err != nil {
		_ = dir.Remove(temp)
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

// SpoolName returns the name of a DEL's file: container ID, separator, interface, suffix.
// If the DEL is for addresses of another plugin's interface, a further separator precedes
// the container ID.
func SpoolName(r Request) string {
	if r.IPAM != "" {
		return spoolSeparator + r.ContainerID + spoolSeparator + r.IfName + SpoolSuffix
	}
	return r.ContainerID + spoolSeparator + r.IfName + SpoolSuffix
}

// SpoolNamed returns the DEL that the name of a file describes. ok is false if the name
// does not have the form of SpoolName.
func SpoolNamed(name string) (r Request, ok bool) {
	r = Request{Verb: VerbDel}
	name = strings.TrimSuffix(name, SpoolSuffix)
	if rest, ipam := strings.CutPrefix(name, spoolSeparator); ipam {
		r.IPAM, name = IPAMPrograms[0], rest
	}
	r.ContainerID, r.IfName, ok = strings.Cut(name, spoolSeparator)
	return r, ok && r.checkEnvironment() == nil
}
