package cloud

import (
	"context"
	"net/http"
)

// Quota is a limit of a project and how much of it is used. Limit -1 is unlimited.
type Quota struct{ Limit, Used int }

// Quotas returns the quotas of a project by resource ("port", "network", "security_group"
// ...). Empty is the project of the credentials. Errors: ErrForbidden.
func (c *Cloud) Quotas(ctx context.Context, project string) (map[string]Quota, error) {
	if project == "" {
		project = c.project
	}
	var answer struct{ Quota map[string]Quota }
	err := c.do(ctx, request{
		call: "read quotas", method: http.MethodGet, path: []string{"quotas", project, "details"}, into: &answer,
	})
	return answer.Quota, err
}
