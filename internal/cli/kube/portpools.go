package kube

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// resourcePortPools is the resource of PortPools for people.
const resourcePortPools = "portpools.fairlead.dev"

// PortPools returns all pools of ready ports.
func (c *Connection) PortPools(ctx context.Context) ([]v1alpha1.PortPool, error) {
	api, server, err := c.Client()
	if err != nil {
		return nil, err
	}
	var list v1alpha1.PortPoolList
	if err := api.List(ctx, &list); err != nil {
		return nil, explain(err, server, resourcePortPools)
	}
	return list.Items, nil
}

// DesirePorts writes the desired number of ready ports into a pool. Nil leaves the number to
// the configuration of the controller.
func (c *Connection) DesirePorts(ctx context.Context, pool string, desired *int32) error {
	api, server, err := c.Client()
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{"spec": map[string]any{"desired": desired}})
	if err != nil {
		return fmt.Errorf("write the desired number of ports: %w", err)
	}
	p := &v1alpha1.PortPool{}
	p.Name = pool
	if err := api.Patch(ctx, p, client.RawPatch(types.MergePatchType, body)); err != nil {
		return explain(err, server, resourcePortPools)
	}
	return nil
}
