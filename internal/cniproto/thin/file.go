package thin

import (
	"errors"
	"io"
	"math/rand/v2"
	"path"
	"strconv"
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

// ReplaceFile writes a file with mode 0600, whole and durable or not at all, by way of
// one whose name begins with temp. The directory is made if need be, with mode 0700.
func ReplaceFile(dir, name, temp string, content []byte) error {
	if err := mkdirAll(dir); err != nil {
		return err
	}
	half := path.Join(dir, temp+strconv.FormatUint(rand.Uint64(), 16))
	err := writeFile(half, content)
	if err == nil {
		err = failed("rename", half, syscall.Rename(half, path.Join(dir, name)))
	}
	if err != nil {
		_ = syscall.Unlink(half)
		return err
	}
	d, err := open(dir, syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	return failed("sync", dir, errors.Join(syscall.Fsync(d.FD), d.Close()))
}

func writeFile(path string, content []byte) error {
	file, err := open(path, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	return failed("write", path, errors.Join(err, syscall.Fsync(file.FD), file.Close()))
}

// Remove removes a file. It is no error when there is none.
func Remove(path string) error {
	if err := syscall.Unlink(path); !errors.Is(err, syscall.ENOENT) {
		return failed("remove", path, err)
	}
	return nil
}

func open(path string, flags int, mode uint32) (File, error) {
	for {
		fd, err := syscall.Open(path, flags|syscall.O_CLOEXEC, mode)
		if !errors.Is(err, syscall.EINTR) {
			return File{FD: fd}, failed("open", path, err)
		}
	}
}

// mkdirAll makes a directory and those above it. What is there already is taken for a
// directory: what is done in it next shows that.
func mkdirAll(dir string) error {
	err := syscall.Mkdir(dir, 0o700)
	if errors.Is(err, syscall.ENOENT) && path.Dir(dir) != dir {
		if err := mkdirAll(path.Dir(dir)); err != nil {
			return err
		}
		err = syscall.Mkdir(dir, 0o700)
	}
	if errors.Is(err, syscall.EEXIST) {
		return nil
	}
	return failed("mkdir", dir, err)
}
