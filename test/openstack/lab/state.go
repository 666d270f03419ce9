package lab

import (
	"context"
	cryptorand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// prefix is the begin of the names of state directories.
const prefix = "fairlead-openstack-"

// maxState is the length of a state directory: the path of a unix socket has at most 107
// bytes, and the longest one is run/CHASSIS/ovn-controller.PID.ctl.
const maxState = 56

// releases are the Debian releases with packages of OpenStack that work.
var releases = []string{"bookworm", "trixie"}

// settings checks the options and completes them.
func (o Options) settings() (settings, error) {
	s := settings{codename: o.Release, netns: "fl-" + strings.ToLower(cryptorand.Text()[:8]), light: o.Light, octavia: o.Octavia, bulkTags: o.BulkTags, pairs: o.Pairs}
	switch o.Release {
	case "":
		s.codename = releases[0]
	case releases[0], releases[1]:
	default:
		return s, fmt.Errorf("release %q of the OpenStack laboratory; must be one of %s", o.Release, strings.Join(releases, ", "))
	}
	if o.Pairs < 0 {
		return s, fmt.Errorf("%d allowed address pairs; must be 0 or more", o.Pairs)
	}
	cache := o.Cache
	if cache == "" {
		root, err := checkout()
		if err != nil {
			return s, err
		}
		cache = filepath.Join(root, "bin", "openstack")
	}
	cache, err := filepath.Abs(cache)
	if err != nil {
		return s, err
	}
	s.cache = filepath.Join(cache, s.codename)
	if codename() != s.codename {
		s.root = filepath.Join(s.cache, "debian")
	}
	s.ports, err = freePorts()
	return s, err
}

// freePorts returns ports of loopback that are free. They lie below the ports that the
// kernel gives to connections, so that none of these takes one before its service starts.
func freePorts() (ports [3]int, err error) {
	const first, count, tries = 20000, 9000, 100
	for i := range ports {
		for range tries {
			var listener net.Listener
			ports[i] = first + rand.IntN(count)
			if listener, err = net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: ports[i]}); err == nil {
				defer listener.Close()
				break
			}
		}
		if err != nil {
			return ports, fmt.Errorf("find a free port: %w", err)
		}
	}
	return ports, nil
}

// codename returns the name of this machine's Debian release, "" if it has none.
func codename() string {
	raw, _ := os.ReadFile("/etc/os-release")
	for line := range strings.Lines(string(raw)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "VERSION_CODENAME="); ok {
			return strings.Trim(name, `"`)
		}
	}
	return ""
}

// checkout returns the directory of go.mod: the go command runs a test in the directory of
// its package.
func checkout() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no go.mod in %s or above it; name the cache of the OpenStack laboratory in Options.Cache", start)
		}
	}
}

// own makes a state directory and locks it. The kernel releases the lock when the process
// ends. A directory that a sweep removed before it was locked is made again.
func own(dir string) (string, *os.File, error) {
	for {
		made, err := makeState(dir)
		if err != nil {
			return "", nil, err
		}
		file, err := lock(made, 0)
		if err != nil {
			return "", nil, err
		}
		if file != nil {
			return made, file, nil
		}
	}
}

func makeState(dir string) (string, error) {
	var err error
	if dir == "" {
		dir, err = os.MkdirTemp("", prefix)
	} else if dir, err = filepath.Abs(dir); err == nil {
		err = os.Mkdir(dir, 0o700)
	}
	if err != nil {
		return "", fmt.Errorf("make the directory of the OpenStack laboratory: %w", err)
	}
	if len(dir) > maxState {
		return "", errors.Join(fmt.Errorf("the directory of the OpenStack laboratory is %s with %d bytes; must have %d at most, because unix sockets are in it", dir, len(dir), maxState), os.Remove(dir))
	}
	return dir, nil
}

// lock locks a directory. It returns nil if the directory is gone, or with LOCK_NB if
// another process has the lock.
func lock(dir string, flags int) (*os.File, error) {
	file, err := os.Open(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX|flags)
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, file.Close()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), file.Close())
	}
	mine, err := file.Stat()
	if err == nil {
		var now os.FileInfo
		if now, err = os.Stat(dir); err == nil && os.SameFile(mine, now) {
			return file, nil
		}
	}
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return nil, errors.Join(err, file.Close())
}

// sweep ends the laboratories whose owners have died.
func sweep(ctx context.Context) error {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		file, err := lock(dir, unix.LOCK_NB)
		if err != nil {
			return fmt.Errorf("look for laboratories that have died: %w", err)
		}
		if file == nil {
			continue
		}
		if err := errors.Join(down(ctx, dir), file.Close()); err != nil {
			return fmt.Errorf("end a laboratory whose owner has died: %w", err)
		}
	}
	return nil
}

// End ends the laboratory of a state directory: it asks the owner for that and waits, or
// does it itself if the owner has died. It returns nil if there is none.
func End(ctx context.Context, dir string) error {
	if l, err := Open(dir); err == nil {
		file, err := lock(dir, unix.LOCK_NB)
		if err != nil {
			return err
		}
		if file != nil {
			return errors.Join(down(ctx, dir), file.Close())
		}
		// The lock proves that the owner lives, and so that its process ID is still its own.
		if err := unix.Kill(l.Owner, unix.SIGTERM); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("ask the owner of the OpenStack laboratory to end it: %w", err)
		}
	}
	file, err := lock(dir, 0)
	if err != nil || file == nil {
		return err
	}
	return errors.Join(down(ctx, dir), file.Close())
}

// Alive reports whether the owner of a state directory lives.
func Alive(dir string) bool {
	file, err := lock(dir, unix.LOCK_NB)
	if file != nil {
		_ = file.Close()
		return false
	}
	_, missing := os.Stat(dir)
	return err == nil && missing == nil
}
