package link

import (
	"errors"
	"os"
	"path/filepath"
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
