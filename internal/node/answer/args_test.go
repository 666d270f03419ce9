package answer

import (
	"errors"
	"testing"

	"fairlead.dev/fairlead/internal/fault"
)

// CNI_ARGS may be in any order, and have foreign keys and malformed parts.
func FuzzParseArgs(f *testing.F) {
	f.Add("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;K8S_POD_UID=u;K8S_POD_INFRA_CONTAINER_ID=c")
	f.Add("K8S_POD_NAME=a=b;K8S_POD_NAMESPACE=;;=;K8S_POD_NAMESPACE=x")
	f.Add("\x00;K8S_POD_NAME")
	f.Fuzz(func(t *testing.T, args string) {
		pod, err := ParseArgs(args)
		if err != nil {
			if !errors.Is(err, fault.ErrEnvironment) {
				t.Errorf("no error for a runtime: %v", err)
			}
			return
		}
		if pod.Namespace == "" || pod.Name == "" {
			t.Errorf("%q gave %+v", args, pod)
		}
	})
}
