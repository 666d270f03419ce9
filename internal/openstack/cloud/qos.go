package cloud

import (
	"context"
	"net/url"
)

// policyJSON is a QoS policy in an answer.
type policyJSON struct {
	ID        string `json:"id"`
	ProjectID string `json:"project_id"`
	Shared    bool   `json:"shared"`
}

// QoSPolicy returns the ID of a QoS policy by its ID, which it does not read, or by its name
// if that is unique among the policies of the project and the shared ones. Errors:
// ErrNotFound, ErrInvalid (several have the name), ErrForbidden (the cloud has none).
func (c *Cloud) QoSPolicy(ctx context.Context, idOrName string) (string, error) {
	if isID(idOrName) {
		return idOrName, nil
	}
	found, err := list[identified[policyJSON]](ctx, c, "qos/policies", url.Values{"name": {idOrName}})
	if err != nil {
		return "", err
	}
	var counts []identified[policyJSON]
	for _, o := range found {
		if o.object.Shared || o.object.ProjectID == c.project {
			counts = append(counts, o)
		}
	}
	policy, err := only("QoS policy", idOrName, counts)
	return policy.ID, err
}
