package netdev

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// ownNamespace is the namespace of the calling thread, which for everyone but
// Namespace.do is that of the process. /proc/self would be the first thread's,
// and do may have borrowed that one.
const ownNamespace = "/proc/thread-self/ns/net"

// NamespaceID tells one namespace from another for as long as it lives. The
// kernel uses numbers again after that, also within one boot.
type NamespaceID struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
}

// Namespace is an open network namespace. While it is open the kernel keeps
// the namespace, whatever happens to its path.
type Namespace struct {
	path string
	id   NamespaceID
	file *os.File

	mu   sync.Mutex
	conn *conn // opened by the first user, kept for the next interface
}

// OpenNamespace opens the network namespace at path, which is a bind mount or
// a file like /proc/7/ns/net. The error is ErrNotNamespace with the path and
// what was found there, also when it is the namespace of this process; it is
// fs.ErrNotExist as well when nothing was there.
func OpenNamespace(path string) (*Namespace, error) {
	ns, err := openNamespace(path)
	if err != nil {
		return nil, err
	}
	own, err := statID(ownNamespace)
	if err != nil {
		_ = ns.Close()
		return nil, fmt.Errorf("looking at this program's own network namespace: %w", err)
	}
	if ns.id == own {
		_ = ns.Close()
		return nil, &notNamespaceError{path: path, found: "it is the network namespace of this program itself"}
	}
	return ns, nil
}

func openNamespace(path string) (*Namespace, error) {
	// O_PATH looks without touching: opening a pipe would wait for its
	// writer, and opening a device may do anything.
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, openError(path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("looking at %q: %w", path, err)
	}
	var sf unix.Statfs_t
	if err := unix.Fstatfs(fd, &sf); err != nil {
		return nil, fmt.Errorf("looking at the file system of %q: %w", path, err)
	}
	if sf.Type != unix.NSFS_MAGIC {
		return nil, &notNamespaceError{path: path, found: foundFile(st.Mode, sf.Type)}
	}
	// Not os.Open, which tries to have each file polled.
	opened, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening %q: %w", path, err)
	}
	file := os.NewFile(uintptr(opened), path)
	kind, err := unix.IoctlRetInt(int(file.Fd()), unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWNET {
		_ = file.Close()
		return nil, &notNamespaceError{path: path, found: "it is a namespace of another kind"}
	}
	return &Namespace{path: path, id: NamespaceID{Device: st.Dev, Inode: st.Ino}, file: file}, nil
}

// ID returns the namespace's device and inode.
func (n *Namespace) ID() NamespaceID { return n.id }

// Path returns the path that the namespace was opened at.
func (n *Namespace) Path() string { return n.path }

// Close lets go of the namespace.
func (n *Namespace) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conn != nil {
		n.conn.close()
		n.conn = nil
	}
	return n.file.Close()
}

// with runs fn with a socket in the namespace, one fn at a time.
func (n *Namespace) with(fn func(*conn) error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conn == nil {
		err := n.do(func() (err error) {
			n.conn, err = dial()
			return err
		})
		if err != nil {
			return err
		}
	}
	err := fn(n.conn)
	if n.conn.broken {
		n.conn.close()
		n.conn = nil
	}
	return err
}

// prepare opens the socket that the next with needs. What hinders it is met
// there again.
func (n *Namespace) prepare() { _ = n.with(func(*conn) error { return nil }) }

// do runs fn on a thread that is in the namespace, and only for fn.
func (n *Namespace) do(fn func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := unix.Open(ownNamespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			runtime.UnlockOSThread()
			result <- fmt.Errorf("opening the thread's network namespace: %w", err)
			return
		}
		defer func() { _ = unix.Close(home) }()
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			result <- fmt.Errorf("entering the network namespace at %q: %w", n.path, err)
			return
		}
		err = fn()
		// A thread that does not get home stays locked, so that it ends with
		// this goroutine and runs no other one in the wrong namespace.
		if unix.Setns(home, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		result <- err
	}()
	return <-result
}

func statID(path string) (NamespaceID, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return NamespaceID{}, err
	}
	return NamespaceID{Device: st.Dev, Inode: st.Ino}, nil
}

// notNamespaceError spells out what was found, without the kernel's own words
// for a missing file: runtimes take these for success.
type notNamespaceError struct {
	path, found string
	missing     bool
}

func (e *notNamespaceError) Error() string {
	return fmt.Sprintf("%q is %v: %s", e.path, ErrNotNamespace, e.found)
}

func (e *notNamespaceError) Is(target error) bool {
	return target == ErrNotNamespace || e.missing && target == fs.ErrNotExist
}

func openError(path string, err error) error {
	switch {
	case path == "":
		return &notNamespaceError{path: path, found: "the path is empty", missing: true}
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return &notNamespaceError{path: path, found: "nothing is there", missing: true}
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.EINVAL):
		return &notNamespaceError{path: path, found: err.Error()}
	}
	return fmt.Errorf("opening %q: %w", path, err)
}

func foundFile(mode uint32, fsType int64) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return "it is a directory"
	case unix.S_IFREG:
		const hint = "; if a namespace is mounted there, this program does not see the mount (in a container the directory needs mountPropagation HostToContainer)"
		return fmt.Sprintf("it is a regular file (file system %#x)", fsType) + hint
	case unix.S_IFIFO:
		return "it is a pipe"
	case unix.S_IFSOCK:
		return "it is a socket"
	default:
		return "it is a device"
	}
}
