package cloud_test

import (
	"errors"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/test/cloudtest"
)

func TestCapabilities(t *testing.T) {
	for name, test := range map[string]struct {
		entry, project string
		keep           bool
		want           map[string]bool
	}{
		"administrator":          {cloudtest.Admin, cloudtest.AdminProject, false, map[string]bool{cloud.BindHost: true, cloud.SetPairs: true, cloud.TagInCreate: false}},
		"member":                 {cloudtest.Member, cloudtest.MemberProject, true, map[string]bool{cloud.BindHost: false, cloud.SetPairs: true, cloud.TagInCreate: true}},
		"member on a shared net": {cloudtest.Member, cloudtest.AdminProject, false, map[string]bool{cloud.BindHost: false, cloud.SetPairs: false, cloud.TagInCreate: false}},
	} {
		t.Run(name, func(t *testing.T) {
			s := cloudtest.New(t)
			s.KeepTags(test.keep)
			c := connectAs(t, s, test.entry)
			n := s.Add(t, "networks", test.project, cloudtest.Object{"name": "n", "shared": true})
			s.Inject(once(http.MethodDelete, "/ports/{id}", cloudtest.Fault{LoseRequest: true}))
			if _, err := c.Capabilities(t.Context(), n, "node1"); !errors.Is(err, cloud.ErrUnavailable) {
				t.Errorf("with a delete that is lost: %v, want %v", err, cloud.ErrUnavailable)
			}
			all, err := c.Capabilities(t.Context(), n, "node1")
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]bool{}
			for _, a := range all {
				got[a.Name] = a.Has
				if a.Reason == "" {
					t.Errorf("%s has no reason", a.Name)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("capabilities (-want +got):\n%s", diff)
			}
			if left := s.Objects("ports"); len(left) != 0 {
				t.Errorf("ports are left: %v", left)
			}
		})
	}
}
