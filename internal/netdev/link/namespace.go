package link

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ownNamespace is the path of the calling thread's namespace, which is that of the
// process except within Namespace.Do. /proc/self would lead to the namespace of the first
// thread, which Do may have borrowed.
const ownNamespace = "/proc/thread-self/ns/net"

// home returns the namespace of the process, which does not change. It is opened once,
// because a walk through /proc costs as much as a change of a link.
var home = sync.OnceValues(func() (*Namespace, error) {
	fd, err := unix.Open(ownNamespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening this program's own network namespace: %w", err)
	}
	return namespaceAt(fd, ownNamespace)
})

// NamespaceID identifies a namespace as long as it exists. Afterwards the kernel may
// reuse the numbers, also within the same boot.
type NamespaceID struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
}

// Namespace is an open network namespace. The kernel keeps an open namespace even if its
// path is removed.
type Namespace struct {
	path string
	id   NamespaceID

	mu   sync.Mutex
	fd   int   // -1 after Close: the number may belong to another file then
	conn *Conn // opened by the first With or Prepare, kept for the next interface
}

// OpenNamespace opens the network namespace at path, which is a bind mount or a file like
// /proc/7/ns/net. Errors: ErrNotNamespace, with the path and a description of the file,
// if it is no network namespace or that of this process; also fs.ErrNotExist if the path
// does not exist; otherwise the kernel's.
func OpenNamespace(path string) (*Namespace, error) {
	ns, err := OpenAnyNamespace(path)
	if err != nil {
		return nil, err
	}
	if own, _ := home(); ns.id == own.id { // OpenAnyNamespace has returned its error
		_ = ns.Close()
		return nil, &notNamespaceError{path: path, found: "it is the network namespace of this program itself"}
	}
	return ns, nil
}

// OpenAnyNamespace opens a network namespace, also that of this process. Errors: those of
// OpenNamespace.
func OpenAnyNamespace(path string) (*Namespace, error) {
	own, err := home()
	if err != nil {
		return nil, err
	}
	// The type of the file is checked before it is opened, because opening a device may
	// have any effect. All namespaces are on one device.
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, openError(path, err)
	}
	if st.Dev != own.id.Device {
		return nil, &notNamespaceError{path: path, found: foundFile(path, st.Mode)}
	}
	// Another file may have replaced it since, and a pipe would wait for its writer.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, openError(path, err)
	}
	return namespaceAt(fd, path)
}

// namespaceAt returns the namespace of a file descriptor, and takes the descriptor over.
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

// Path returns the path by which the namespace was opened.
func (n *Namespace) Path() string { return n.path }

// FD returns the namespace's file descriptor, for messages to the kernel. It is valid
// until Close.
func (n *Namespace) FD() int { return n.fd }

// Close releases the namespace and its socket.
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

// errClosed is returned after Close, which may come before a concurrent Prepare.
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

// Prepare opens the socket for the next With. It drops an error, which recurs in With.
func (n *Namespace) Prepare() { _ = n.With(func(*Conn) error { return nil }) }

// Do runs fn on a thread in the namespace. The thread is there only for fn.
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
		// A thread that cannot return to its namespace stays locked. It ends with this
		// goroutine, and runs no other goroutine in the wrong namespace.
		if unix.Setns(back.fd, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		result <- err
	}()
	return <-result
}

// NotNamespace returns an ErrNotNamespace that describes the file at a path.
func NotNamespace(path, found string) error { return &notNamespaceError{path: path, found: found} }

// notNamespaceError describes the file at a path that is no namespace. It avoids the
// kernel's words for a missing file, which runtimes take for success.
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

// Handle opens a handle of the netlink library in the namespace.
func (n *Namespace) Handle() (*netlink.Handle, error) {
	var h *netlink.Handle
	err := n.Do(func() (err error) {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket in the namespace at %q: %w", n.path, err)
	}
	return h, nil
}

// Links lists the links of the namespace. Errors: those of Dump.
func (n *Namespace) Links(ctx context.Context) ([]netlink.Link, error) {
	h, err := n.Handle()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	return Dump(ctx, "listing links", h.LinkList)
}

// NameIsFree returns ErrExists if the namespace has a link with this name.
func (n *Namespace) NameIsFree(name string) error {
	return n.With(func(c *Conn) error {
		index, err := c.Index(name)
		if err == nil && index != 0 {
			err = fmt.Errorf("%w: %s in the namespace at %q", ErrExists, name, n.path)
		}
		return err
	})
}
