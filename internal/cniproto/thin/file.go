package thin

import (
	"errors"
	"io"
	"math/rand/v2"
	"path"
	"strconv"
	"strings"
	"syscall"
)

// ErrDeadline says that a File was waited for until its deadline.
var ErrDeadline = errors.New("the deadline is over")

// File is a file that is open. Reads and writes wait in the kernel and not in Go's
// poller, which would have to be set up for them.
type File struct {
	// FD is its descriptor.
	FD int
	// Deadline of a socket, a time of Now, is when its waits end with ErrDeadline. At 0
	// they do not end, also where whoever opened the file wanted none.
	Deadline int64
}

// Read is part of io.Reader.
func (f File) Read(p []byte) (int, error) {
	n, err := f.repeat(syscall.SO_RCVTIMEO, syscall.Read, p)
	if n == 0 && err == nil && len(p) > 0 {
		return 0, io.EOF
	}
	return n, err
}

// Write is part of io.Writer.
func (f File) Write(p []byte) (written int, err error) {
	for written < len(p) && err == nil {
		var n int
		n, err = f.repeat(syscall.SO_SNDTIMEO, syscall.Write, p[written:])
		written += n
	}
	return written, err
}

// repeat makes a system call until it has done something.
func (f File) repeat(timeout int, call func(int, []byte) (int, error), p []byte) (int, error) {
	for {
		if err := f.limit(timeout); err != nil {
			return 0, err
		}
		n, err := call(f.FD, p)
		switch {
		case err == nil:
			return n, nil
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EAGAIN): // or the deadline is over
			if err := syscall.SetNonblock(f.FD, false); err != nil {
				return 0, err
			}
		default:
			return 0, err
		}
	}
}

// limit has the next wait end at the deadline.
func (f File) limit(timeout int) error {
	if f.Deadline == 0 {
		return nil
	}
	left := f.Deadline - Now()
	if left <= 0 { // 0 would be for ever
		return ErrDeadline
	}
	tv := syscall.NsecToTimeval(left * 1e6)
	return syscall.SetsockoptTimeval(f.FD, syscall.SOL_SOCKET, timeout, &tv)
}

// Close is part of io.Closer.
func (f File) Close() error { return syscall.Close(f.FD) }

// ReadFile reads a file, and of a larger one than limit that many bytes.
func ReadFile(path string, limit int) ([]byte, error) {
	file, err := open(path, syscall.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // nothing was written
	content, err := io.ReadAll(io.LimitReader(file, int64(limit)))
	return content, failed("read", path, err)
}

// Age is for how long a file has not been written, in milliseconds.
func Age(path string) (int64, error) {
	var stat syscall.Stat_t
	if err := syscall.Stat(path, &stat); err != nil {
		return 0, failed("stat", path, err)
	}
	var now syscall.Timeval
	if err := syscall.Gettimeofday(&now); err != nil {
		return 0, failed("compare the clock with", path, err)
	}
	return (now.Nano() - stat.Mtim.Nano()) / 1e6, nil
}

// ErrNotOwn says that a directory may be somebody else's: it is not this user's, or
// others may change what is in it.
var ErrNotOwn = errors.New("must be a directory of this user alone, with mode 0700")

// OpenOwn opens a directory below root, which is trusted. No part of the way below root
// may be a symbolic link, all of it has to be this user's, and nobody else may write
// there; the last one has mode 0700. Else the error is ErrNotOwn, or the kernel's.
func OpenOwn(root, below string) (File, error) {
	at, err := open(root, syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	whole, left := root, below
	for err == nil && left != "" {
		var name string
		name, left, _ = strings.Cut(left, "/")
		whole = path.Join(whole, name)
		mask, want := uint32(0o022), uint32(0)
		if left == "" {
			mask, want = 0o7777, 0o700
		}
		var next File
		next, err = at.openOwn(name, whole, mask, want)
		_ = at.Close()
		at = next
	}
	return at, err
}

// openOwn opens a directory in another: of its mode the bits of mask are those wanted.
func (f File) openOwn(name, whole string, mask, want uint32) (File, error) {
	fd, err := syscall.Openat(f.FD, name, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err != nil {
		return File{FD: -1}, failed("open", whole, err)
	}
	var stat syscall.Stat_t
	err = syscall.Fstat(fd, &stat)
	if err == nil && (stat.Uid != uint32(syscall.Geteuid()) || stat.Mode&mask != want) { //nolint:gosec // a user ID has 32 bits
		err = ErrNotOwn
	}
	if err != nil {
		_ = syscall.Close(fd)
		return File{FD: -1}, failed("open", whole, err)
	}
	return File{FD: fd}, nil
}

// ReplaceFile writes a file with mode 0600 in a directory that is open, whole and
// durable or not at all, by way of one whose name begins with temp.
func (f File) ReplaceFile(name, temp string, content []byte) error {
	half := temp + strconv.FormatUint(rand.Uint64(), 16)
	err := f.writeFile(half, content)
	if err == nil {
		err = failed("rename", half, syscall.Renameat(f.FD, half, f.FD, name))
	}
	if err != nil {
		_ = syscall.Unlinkat(f.FD, half)
		return err
	}
	return failed("sync the directory of", name, syscall.Fsync(f.FD))
}

func (f File) writeFile(name string, content []byte) error {
	fd, err := syscall.Openat(f.FD, name, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_EXCL|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return failed("open", name, err)
	}
	file := File{FD: fd}
	_, err = file.Write(content)
	return failed("write", name, errors.Join(err, syscall.Fsync(fd), file.Close()))
}

// Remove removes a file from a directory that is open. It is no error when there is none.
func (f File) Remove(name string) error {
	if err := syscall.Unlinkat(f.FD, name); !errors.Is(err, syscall.ENOENT) {
		return failed("remove", name, err)
	}
	return nil
}

// IsOwnSocket tells whether a unix socket of this user lies at a path: no symbolic link
// to one either. The error is the kernel's.
func IsOwnSocket(path string) (bool, error) {
	var stat syscall.Stat_t
	if err := syscall.Lstat(path, &stat); err != nil {
		return false, failed("lstat", path, err)
	}
	return stat.Mode&syscall.S_IFMT == syscall.S_IFSOCK && stat.Uid == uint32(syscall.Geteuid()), nil //nolint:gosec // a user ID has 32 bits
}

// PeerIsOwn tells whether the process that listens at the other end of a connected unix
// socket is this user's.
func (f File) PeerIsOwn() (bool, error) {
	cred, err := syscall.GetsockoptUcred(f.FD, syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	return err == nil && cred.Uid == uint32(syscall.Geteuid()), err //nolint:gosec // a user ID has 32 bits
}

func open(path string, flags int, mode uint32) (File, error) {
	for {
		fd, err := syscall.Open(path, flags|syscall.O_CLOEXEC, mode)
		if !errors.Is(err, syscall.EINTR) {
			return File{FD: fd}, failed("open", path, err)
		}
	}
}
