package cli

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/test/clitest"
)

func TestAttentionToOpenStack(t *testing.T) {
	turned := func(kind, reason string) func(*v1alpha1.CloudStatus) {
		return func(s *v1alpha1.CloudStatus) {
			s.Conditions = append([]metav1.Condition{clitest.Condition(kind, metav1.ConditionFalse, reason)}, s.Conditions...)
		}
	}
	for name, test := range map[string]struct {
		snap kube.Snapshot
		want []string
	}{
		"well":            {clitest.OnOpenStack(), []string{}},
		"away":            {clitest.OnOpenStack(turned(v1alpha1.ConditionConnected, "NoAnswer")), []string{"OpenStack east: Connected: NoAnswer: NoAnswer it is"}},
		"quota":           {clitest.OnOpenStack(turned(v1alpha1.ConditionQuotaLeft, "QuotaLow")), []string{"OpenStack east: QuotaLeft: QuotaLow: QuotaLow it is"}},
		"no right":        {clitest.OnOpenStack(turned(v1alpha1.ConditionBindHost, "Tried")), []string{"OpenStack east: BindHost: Tried: Tried it is"}},
		"ports are left":  {clitest.OnOpenStack(clitest.Leaving), []string{"OpenStack east: garbage collection leaves 1 port alone: see fairlead gc --dry-run"}},
		"nothing is seen": {kube.Snapshot{Now: clitest.Now, Clouds: []v1alpha1.Cloud{{}}, Lease: clitest.Quiet().Lease, Nodes: clitest.Quiet().Nodes}, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, buildStatus(test.snap).Attention); diff != "" {
				t.Errorf("attention (-want +got):\n%s", diff)
			}
		})
	}
}
