package pod

import (
	"testing"

	"fairlead.dev/fairlead/api/v1alpha1"
)

func TestSummarize(t *testing.T) {
	got := Summarize([]v1alpha1.Interface{
		{Name: "eth0", Addresses: []string{"10.244.0.5/32", "fd00::5/128"}},
		{Name: "fl0", Internal: true, Addresses: []string{"10.244.9.9/32"}},
		{Name: "net1"},
	})
	if want := (v1alpha1.AttachmentSummary{Interfaces: "eth0,net1", Addresses: "10.244.0.5,fd00::5"}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
