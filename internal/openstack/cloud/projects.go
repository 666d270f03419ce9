package cloud

import (
	"context"
	"errors"
	"net/http"
)

// Project is a project of Keystone.
type Project struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// Projects returns all projects, or those that the credentials have a role in, if they may
// not list all. Names are unique in a domain only. Errors: ErrForbidden, ErrUnavailable.
func (c *Cloud) Projects(ctx context.Context) ([]Project, error) {
	const call = "list projects"
	if c.keystone == nil {
		return nil, &failure{call: call, kind: ErrForbidden, text: "the catalog of the cloud has no Keystone for these credentials"}
	}
	var answer struct{ Projects []Project }
	all := request{call: call, keystone: true, method: http.MethodGet, path: []string{"projects"}, into: &answer}
	err := c.do(ctx, all)
	if errors.Is(err, ErrForbidden) {
		all.path = []string{"auth", "projects"}
		err = c.do(ctx, all)
	}
	return answer.Projects, err
}
