package report

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/test/cloudtest"
	"fairlead.dev/fairlead/test/cluster"
)

// The Cloud shows a connection that is refused, then the ports, the quotas and the abilities,
// and keeps them when the cloud is away. The API server accepts the object, and no port of
// the trial is left in the cloud.
func TestCloudShowsTheState(t *testing.T) {
	c, s := cluster.Exclusive(t), cloudtest.New(t)
	s.AddNetwork(t, "pods", "10.8.0.0/24")
	s.Add(t, "ports", cloudtest.AdminProject, cloudtest.Object{
		"network_id": s.Objects("networks")[0]["id"], "device_owner": "compute:fairlead", "name": "shop/cart/eth0",
	})
	s.SetQuota(cloudtest.AdminProject, "port", 1)
	r, err := New(Config{
		Cluster: "east", DeviceOwner: "compute:fairlead", Recognize: func(*cloud.Cloud, cloud.Port) (bool, string) { return true, "" },
		Network: "pods", Host: func(context.Context) (string, error) { return "node-1", nil },
		Client: c.Client, Live: c.Client, Interval: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	seen := func() map[string]string {
		t.Helper()
		o := &v1alpha1.Cloud{}
		if err := c.Client.Get(t.Context(), client.ObjectKey{Name: "east"}, o); err != nil {
			t.Fatal(err)
		}
		out := map[string]string{"ports": o.Status.Summary}
		for _, cond := range o.Status.Conditions {
			out[cond.Type] = string(cond.Status)
		}
		return out
	}
	round := func() {
		t.Helper()
		st, answers := r.look(t.Context())
		if answers != nil {
			r.try(t.Context(), answers, &st)
		}
		if err := r.write(t.Context(), st); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		o := &v1alpha1.Cloud{}
		o.Name = "east"
		if err := c.Client.Delete(context.WithoutCancel(t.Context()), o); err != nil {
			t.Error(err)
		}
	})

	r.Connected(nil, cloud.ErrForbidden)
	round()
	if diff := cmp.Diff(map[string]string{"ports": "", v1alpha1.ConditionConnected: "False"}, seen()); diff != "" {
		t.Errorf("without a connection (-want +got):\n%s", diff)
	}

	r.Connected(cloud.New(t.Context(), cloud.Config{File: s.File, Cloud: cloudtest.Admin, Cluster: "east"}))
	s.SetQuota(cloudtest.AdminProject, "port", 2) // room for the probe
	round()
	s.SetQuota(cloudtest.AdminProject, "port", 1)
	round()
	want := map[string]string{
		"ports": "1 DOWN", v1alpha1.ConditionConnected: "True", v1alpha1.ConditionExplained: "True", v1alpha1.ConditionQuotaLeft: "False",
		v1alpha1.ConditionBindHost: "True", v1alpha1.ConditionSetPairs: "True", v1alpha1.ConditionTagInCreate: "False",
	}
	if diff := cmp.Diff(want, seen()); diff != "" {
		t.Errorf("with a connection (-want +got):\n%s", diff)
	}

	s.Inject(func(string, string) cloudtest.Fault { return cloudtest.Fault{Status: http.StatusInternalServerError} })
	round()
	want[v1alpha1.ConditionConnected] = "False"
	if diff := cmp.Diff(want, seen()); diff != "" {
		t.Errorf("while the cloud is away (-want +got):\n%s", diff)
	}
	o := &v1alpha1.Cloud{}
	if err := c.Client.Get(t.Context(), client.ObjectKey{Name: "east"}, o); err != nil {
		t.Fatal(err)
	}
	if m := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionConnected).Message; m == "" {
		t.Error("the reason is not told")
	}
	if n := len(s.Objects("ports")); n != 1 {
		t.Errorf("%d ports are in the cloud, want the 1 of the pod", n)
	}
}

// A run ends with the term, looks at once, and shows nothing in metrics afterwards.
func TestRunEndsWithItsTerm(t *testing.T) {
	c := cluster.Exclusive(t)
	r, err := New(Config{Cluster: "west", Client: c.Client, Live: c.Client, Interval: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	c.Eventually(t, "the Cloud to be written", func(ctx context.Context) error {
		return c.Client.Get(ctx, client.ObjectKey{Name: "west"}, &v1alpha1.Cloud{})
	})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	o := &v1alpha1.Cloud{}
	o.Name = "west"
	if err := c.Client.Delete(t.Context(), o); err != nil {
		t.Error(err)
	}
}
