package link

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Place identifies a network namespace in a record.
type Place struct {
	// Path is the path that the runtime passed.
	Path string `json:"path"`
	// ID is the namespace that was at Path.
	ID NamespaceID `json:"id"`
}

// Place returns the path and ID of the namespace.
func (n *Namespace) Place() Place { return Place{Path: n.path, ID: n.id} }

// Closed returns the namespace as it is after Close: its place is known, and nothing else of it
// can be used.
func (p Place) Closed() *Namespace { return &Namespace{path: p.Path, id: p.ID, fd: -1} }

// Open opens the namespace. Errors: those of OpenNamespace, and ErrNotNamespace if
// another namespace is at its path.
func (p Place) Open() (*Namespace, error) {
	ns, err := OpenNamespace(p.Path)
	if err != nil {
		return nil, err
	}
	if ns.ID() != p.ID {
		_ = ns.Close()
		return nil, &notNamespaceError{path: p.Path, found: "another namespace has come in its place", replaced: true}
	}
	return ns, nil
}

// procDir has a directory for each process.
const procDir = "/proc"

// OpenHeld opens the namespace also if its path is gone and a process is still in it. It
// finds only processes that this program sees, and not its own. Errors: those of Open.
func (p Place) OpenHeld() (*Namespace, error) {
	ns, err := p.Open()
	if !errors.Is(err, ErrNotNamespace) || p.ID == (NamespaceID{}) {
		return ns, err
	}
	processes, readErr := os.ReadDir(procDir)
	if readErr != nil {
		return nil, errors.Join(err, readErr)
	}
	own := strconv.Itoa(os.Getpid())
	for _, process := range processes {
		if _, notNumber := strconv.Atoi(process.Name()); notNumber != nil || process.Name() == own {
			continue
		}
		path := filepath.Join(procDir, process.Name(), "ns/net")
		var st unix.Stat_t
		if unix.Stat(path, &st) != nil || (NamespaceID{Device: st.Dev, Inode: st.Ino}) != p.ID {
			continue
		}
		if held, err := (Place{Path: path, ID: p.ID}).Open(); err == nil {
			return held, nil
		}
	}
	return nil, err
}

// Gone reports whether the namespace has ended: its path does not exist, or leads to a
// later namespace. It is false in case of doubt. The namespace may be hidden, because
// mounts of namespaces do not reach the container of this program, or because the whole
// directory is missing. A place without a path is never gone.
func (p Place) Gone() bool {
	if p.Path == "" {
		return false
	}
	ns, err := p.Open()
	if err == nil {
		_ = ns.Close()
		return false
	}
	var not *notNamespaceError
	if !errors.As(err, &not) || !not.missing {
		return not != nil && not.replaced
	}
	_, err = os.Stat(filepath.Dir(p.Path))
	return err == nil
}
