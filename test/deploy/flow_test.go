package deploy

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/test/cluster"
)

// testLeaseFlow checks that requests of the controller for its Lease do not wait behind its
// other requests: the API server has a queue of their own for them.
func testLeaseFlow(t *testing.T, c *cluster.Cluster) {
	a := newAccount(t, c.Account(cluster.ControllerAccount, ""))
	leases := "/apis/coordination.k8s.io/v1/namespaces/" + cluster.AccountNamespace + "/leases"
	for _, tc := range []struct{ name, method, path, want string }{
		{"read", http.MethodGet, leases + "/fairlead-controller", "fairlead-leader-election"},
		{"renewal", http.MethodPut, leases + "/fairlead-controller", "fairlead-leader-election"},
		{"first", http.MethodPost, leases + "?dryRun=All", "fairlead-leader-election"},
		{"another request", http.MethodGet, ours + "ippools", "service-accounts"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			schema := &flowcontrolv1.FlowSchema{}
			if err := c.Client.Get(t.Context(), client.ObjectKey{Name: tc.want}, schema); err != nil {
				t.Fatal(err)
			}
			// The API server takes a moment until a new schema is in force.
			c.Eventually(t, "the queue of a request", func(ctx context.Context) error {
				r, err := http.NewRequestWithContext(ctx, tc.method, a.server+tc.path, http.NoBody)
				if err != nil {
					return err
				}
				answer, err := a.http.Do(r)
				if err != nil {
					return err
				}
				_ = answer.Body.Close()
				if got := answer.Header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID); got != string(schema.UID) {
					return fmt.Errorf("the request is of the schema with UID %q, not of %s", got, schema.Name)
				}
				return nil
			})
		})
	}
}
