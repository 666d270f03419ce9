package neutron

import (
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/internal/driver/neutron/choice"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// projectID is the form of the IDs of projects.
var projectID = regexp.MustCompile(`^([0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$`)

// projects are the names of the projects of the cloud. They are read once the connection is
// made, if the operator opens projects by name, and again when a name is unknown.
type projects struct {
	choice choice.Config

	mu    sync.Mutex
	names map[string]string // by ID
	read  time.Time
}

// refresh reads the projects, at most once in knownFor. Credentials that may not list them
// know none.
func (p *projects) refresh(ctx context.Context, c *cloud.Cloud) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.read.IsZero() && time.Since(p.read) < knownFor {
		return nil
	}
	all, err := c.Projects(ctx)
	if errors.Is(err, cloud.ErrForbidden) {
		log.FromContext(ctx).Error(err, "projects of OpenStack are known by their ID alone, because the credentials may not list them")
		err = nil
	}
	if err != nil {
		return err
	}
	p.names, p.read = map[string]string{}, time.Now()
	for _, one := range all {
		p.names[one.ID] = one.Name
	}
	return nil
}

// name returns the name of a project; empty if it is not known.
func (p *projects) name(id string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.names[id]
}

// named returns the IDs of the projects with a name, sorted.
func (p *projects) named(name string) (ids []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, has := range p.names {
		if has == name {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// namesProjects reports whether the operator opens projects by name.
func (c Config) namesProjects() bool {
	return slices.ContainsFunc(c.Choice.Open, func(o choice.Opening) bool {
		return slices.ContainsFunc(o.Names[choice.KindProject], func(pattern string) bool { return !projectID.MatchString(pattern) })
	})
}

// connect connects to the cloud, and reads the names of the projects that pods may have ports
// in: without them a port of such a project would be taken for that of another.
func (d *Driver) connect(ctx context.Context) (*cloud.Cloud, error) {
	c, err := d.cfg.Connect(ctx)
	if err != nil || !d.cfg.namesProjects() {
		return c, err
	}
	if err := d.projects.refresh(ctx, c); err != nil {
		return nil, err
	}
	return c, nil
}

// find returns the ID of a project by its ID or name; empty for an empty name. Errors:
// fault.ErrInvalid with the IDs if several have the name, fault.ErrNotFound,
// fault.ErrUnavailable.
func (p *projects) find(ctx context.Context, conn *connection, name string) (string, error) {
	if name == "" || projectID.MatchString(name) {
		return name, nil
	}
	ids := p.named(name)
	if len(ids) == 0 {
		c, err := conn.get()
		if err != nil {
			return "", err
		}
		if err := p.refresh(ctx, c); err != nil {
			return "", fmt.Errorf("project %q: %w", name, translate(err))
		}
		ids = p.named(name)
	}
	switch len(ids) {
	case 0:
		return "", fmt.Errorf("%w: project %q: the cloud has none of the name that the credentials of the controller may list: give the ID", fault.ErrNotFound, name)
	case 1:
		return ids[0], nil
	}
	return "", fmt.Errorf("%w: project %q: %d projects have the name: give the ID, as one of %s", fault.ErrInvalid, name, len(ids), strings.Join(ids, ", "))
}

// mayHold reports whether a port of this cluster can be in a project.
func (p *projects) mayHold(c *cloud.Cloud, project string) bool {
	if project == c.Project() || project == p.choice.Project {
		return true
	}
	name := p.name(project)
	return slices.ContainsFunc(p.choice.Open, func(o choice.Opening) bool {
		return slices.ContainsFunc(o.Names[choice.KindProject], func(pattern string) bool {
			byID, _ := path.Match(pattern, project) // a wrong pattern is refused at the start
			byName, _ := path.Match(pattern, name)
			return byID || name != "" && byName
		})
	})
}
