package link

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// ownNamespace is the namespace of the calling thread, which for everyone but
// Namespace.Do is that of the process. /proc/self would be the first thread's,
// and Do may have borrowed that one.
const ownNamespace = "/proc/thread-self/ns/net"

// home is the namespace that the process is in, opened once: a walk through /proc
// costs as much as a change of a link. A process does not leave its namespace.
var home = sync.OnceValues(func() (*Namespace, error) {
	fd, err := unix.Open(ownNamespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening this program's own network namespace: %w", err)
	}
	return namespaceAt(fd, ownNamespace)
})

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

	mu   sync.Mutex
	fd   int   // -1 when it was closed: the number may be another file's then
	conn *Conn // opened by the first user, kept for the next interface
}

// OpenNamespace opens the network namespace at path, which is a bind mount or
// a file like /proc/7/ns/net. The error is ErrNotNamespace with the path and
// what was found there, also when it is the namespace of this process; it is
// fs.ErrNotExist as well when nothing was there.
func OpenNamespace(path string) (*Namespace, error) {
	ns, err := OpenAnyNamespace(path)
	if err != nil {
		return nil, err
	}
	if own, _ := home(); ns.id == own.id { // openNamespace had it too
		_ = ns.Close()
		return nil, &notNamespaceError{path: path, found: "it is the network namespace of this program itself"}
	}
	return ns, nil
}

// OpenAnyNamespace is OpenNamespace for the namespace of this process, too.
func OpenAnyNamespace(path string) (*Namespace, error) {
	own, err := home()
	if err != nil {
		return nil, err
	}
	// It is looked at before it is opened: opening a device may do anything. All
	// namespaces are on one device.
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, openError(path, err)
	}
	if st.Dev != own.id.Device {
		return nil, &notNamespaceError{path: path, found: foundFile(path, st.Mode)}
	}
	// Should something else have come in its place: a pipe would wait for its writer.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, openError(path, err)
	}
	return namespaceAt(fd, path)
}

// namespaceAt is the namespace that a file descriptor is of, which it takes over.
func namespaceAt(fd int, path string) (*Namespace, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("looking at %q: %w", path, err)
	}
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWNET {
		_ = unix.Close(fd)
		return nil, &notNamespaceError{path: path, found: "it is a namespace of another kind"}
	}
	return &Namespace{path: path, id: NamespaceID{Device: st.Dev, Inode: st.Ino}, fd: fd}, nil
}

// ID returns the namespace's device and inode.
func (n *Namespace) ID() NamespaceID { return n.id }

// Path returns the path that the namespace was opened at.
func (n *Namespace) Path() string { return n.path }

// FD returns its file descriptor, for messages to the kernel. It is open as long as the
// namespace is.
func (n *Namespace) FD() int { return n.fd }

// Close lets go of the namespace.
func (n *Namespace) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conn != nil {
		n.conn.close()
		n.conn = nil
	}
	fd := n.fd
	n.fd = -1
	return unix.Close(fd)
}

// errClosed is for who comes too late, as Prepare may.
var errClosed = fmt.Errorf("network namespace: %w", fs.ErrClosed)

// With runs fn with a socket in the namespace, one fn at a time.
func (n *Namespace) With(fn func(*Conn) error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fd < 0 {
		return errClosed
	}
	if n.conn == nil {
		err := n.Do(func() (err error) {
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

// Prepare opens the socket that the next With needs. What hinders it is met
// there again.
func (n *Namespace) Prepare() { _ = n.With(func(*Conn) error { return nil }) }

// Do runs fn on a thread that is in the namespace, and only for fn.
func (n *Namespace) Do(fn func() error) error {
	back, err := home()
	if err != nil {
		return err
	}
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			result <- fmt.Errorf("entering the network namespace at %q: %w", n.path, err)
			return
		}
		err := fn()
		// A thread that does not get home stays locked, so that it ends with
		// this goroutine and runs no other one in the wrong namespace.
		if unix.Setns(back.fd, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		result <- err
	}()
	return <-result
}

// NotNamespace returns an ErrNotNamespace that spells out what was found at a path.
func NotNamespace(path, found string) error { return &notNamespaceError{path: path, found: found} }

// notNamespaceError spells out what was found, without the kernel's own words
// for a missing file: runtimes take these for success.
type notNamespaceError struct {
	path, found string
	missing     bool
	replaced    bool // by another namespace
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

func foundFile(path string, mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return "it is a directory"
	case unix.S_IFREG:
		const hint = "; if a namespace is mounted there, this program does not see the mount (in a container the directory needs mountPropagation HostToContainer)"
		var fs unix.Statfs_t
		if err := unix.Statfs(path, &fs); err != nil {
			return "it is a regular file" + hint
		}
		return fmt.Sprintf("it is a regular file (file system %#x)", fs.Type) + hint
	case unix.S_IFIFO:
		return "it is a pipe"
	case unix.S_IFSOCK:
		return "it is a socket"
	default:
		return "it is a device"
	}
}
