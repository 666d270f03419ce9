package netlab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Namespace is an open network namespace. Unless it is pinned it has no name in the file
// system: it ends when it is closed and the last process in it has ended, in whatever way
// its creator ends.
type Namespace struct {
	file   *os.File
	pinned string // path, or empty
}

// NewNamespace makes an empty network namespace with its loopback link up.
func NewNamespace() (*Namespace, error) {
	var ns *Namespace
	err := onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		var err error
		ns, err = Current()
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := ns.loopbackUp(); err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return ns, nil
}

// Current opens the network namespace of the calling thread.
func Current() (*Namespace, error) { return OpenNamespace("/proc/thread-self/ns/net") }

// OpenNamespace opens the network namespace at a path.
func OpenNamespace(path string) (*Namespace, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the network namespace: %w", err)
	}
	kind, err := unix.IoctlRetInt(int(file.Fd()), unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWNET {
		return nil, errors.Join(fmt.Errorf("%s: must be a network namespace", path), file.Close())
	}
	return &Namespace{file: file}, nil
}

// Path returns a path of the namespace for other processes, valid while this process runs
// and the namespace is open.
func (n *Namespace) Path() string {
	if n.pinned != "" {
		return n.pinned
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.file.Fd())
}

// Pin mounts the namespace at a path without a file, as container runtimes do. A process
// with fewer capabilities than this one can open that path, but not Path of an unpinned
// namespace. Close unmounts it.
func (n *Namespace) Pin(path string) error {
	if err := os.WriteFile(path, nil, 0o444); err != nil {
		return fmt.Errorf("pin a network namespace: %w", err)
	}
	if err := unix.Mount(n.Path(), path, "", unix.MS_BIND, ""); err != nil {
		return errors.Join(fmt.Errorf("pin a network namespace at %s: %w", path, err), os.Remove(path))
	}
	n.pinned = path
	return nil
}

// Close closes the namespace.
func (n *Namespace) Close() error {
	err := n.file.Close()
	if n.pinned != "" {
		// The mount is detached, because others may have it open.
		err = errors.Join(err, unix.Unmount(n.pinned, unix.MNT_DETACH), os.Remove(n.pinned))
		n.pinned = ""
	}
	return err
}

// Do runs fn inside the namespace, on a thread of its own: sockets and files under
// /proc/sys/net that fn opens belong to the namespace. Goroutines that fn starts are not
// inside. In a test fn must return an error and not fail the test itself.
func (n *Namespace) Do(fn func() error) error {
	return onOwnThread(func() error {
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the network namespace: %w", err)
		}
		return fn()
	})
}

// Start starts a process inside the namespace. The command must not set Pdeathsig: the
// kernel would send the signal when the starting thread ends.
func (n *Namespace) Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr != nil && cmd.SysProcAttr.Pdeathsig != 0 {
		return errors.New("start in a network namespace: Pdeathsig is set; it must be 0")
	}
	return n.Do(cmd.Start)
}

// Netlink opens a netlink handle of the namespace that any thread may use. The caller
// closes it.
func (n *Namespace) Netlink() (*netlink.Handle, error) {
	handle, err := netlink.NewHandleAt(netns.NsHandle(n.file.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink in the namespace: %w", err)
	}
	return handle, nil
}

// Received returns the number of packets that a link has received.
func (n *Namespace) Received(link string) (uint64, error) {
	handle, err := n.Netlink()
	if err != nil {
		return 0, err
	}
	defer handle.Close()
	dev, err := handle.LinkByName(link)
	if err != nil {
		return 0, fmt.Errorf("look at link %s: %w", link, err)
	}
	return dev.Attrs().Statistics.RxPackets, nil
}

func (n *Namespace) loopbackUp() error {
	handle, err := n.Netlink()
	if err != nil {
		return err
	}
	defer handle.Close()
	// Every new namespace has its loopback link as number 1.
	lo, err := handle.LinkByIndex(1)
	if err != nil {
		return fmt.Errorf("find the loopback link: %w", err)
	}
	if err := handle.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set the loopback link up: %w", err)
	}
	return nil
}

// onOwnThread runs fn on a thread that ends with it, so that changes of the thread by fn
// cannot affect another goroutine.
func onOwnThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- fn()
	}()
	return <-done
}
