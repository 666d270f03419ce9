package pod

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestWantsAndHolds(t *testing.T) {
	now := metav1.Now()
	cases := []struct {
		name         string
		change       func(p *corev1.Pod)
		wants, holds bool
	}{
		{name: "scheduled", change: func(*corev1.Pod) {}, wants: true, holds: true},
		{name: "not scheduled", change: func(p *corev1.Pod) { p.Spec.NodeName = "" }},
		{name: "on the host's network", change: func(p *corev1.Pod) { p.Spec.HostNetwork = true }},
		{name: "succeeded", change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }},
		{name: "failed", change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }},
		{name: "running", change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }, wants: true, holds: true},
		{name: "being deleted", change: func(p *corev1.Pod) { p.DeletionTimestamp = &now }, holds: true},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n1"}, Status: corev1.PodStatus{Phase: corev1.PodPending}}
			tc.change(p)
			if Wants(p) != tc.wants || Holds(p) != tc.holds {
				t.Errorf("Wants %v, Holds %v; want %v, %v", Wants(p), Holds(p), tc.wants, tc.holds)
			}
		})
	}
}

// A static pod's sandbox has the UID of its manifest; kuryr waited for ever for the
// mirror's UID (its podStatic exception).
func TestCNIAsksForAStaticPodByItsMirrorAnnotation(t *testing.T) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "mirror", Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "manifest"}}}
	if got := CNIUID(p); got != "manifest" {
		t.Errorf("UID %q, want manifest", got)
	}
	p.Annotations = nil
	if got := CNIUID(p); got != "mirror" {
		t.Errorf("UID %q, want mirror", got)
	}
}

func TestAttachmentName(t *testing.T) {
	long := strings.Repeat("a", 253)
	cases := []struct {
		name, pod, want string
		uid             types.UID
	}{
		{"a UUID", "web-0", "web-0-0f8fad5b", "0f8fad5b-d9cb-469f-a165-70867728950e"},
		{"a short UID", "web-0", "web-0-abc", "abc"},
		{"a UID that is no name", "web-0", "pod-de7543fa8c42570c8ba882a4f1f89a04", "A_0:"},
		{"a name that ends badly when it is cut", strings.Repeat("a", 243) + ".bbbbbbbbb", "pod-9cd69f35caf48f9e13f137d81f9a6d25", "0f8fad5b-d9cb-469f-a165-70867728950e"},
		{"the longest pod name", long, long[:244] + "-0f8fad5b", "0f8fad5b-d9cb-469f-a165-70867728950e"},
	}
	for _, tc := range cases {
		if got := AttachmentName(tc.pod, tc.uid); got != tc.want || len(got) > 253 {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestInterfaces(t *testing.T) {
	give := func(all ...Interface) Source {
		return func(*corev1.Pod) ([]Interface, error) { return all, nil }
	}
	eth0 := Interface{Name: "eth0", Network: "default", Default: true}
	cases := []struct {
		name    string
		sources []Source
		want    []Interface
		wantErr string
	}{
		{name: "no sources", want: []Interface{eth0}},
		{name: "sources that find nothing", sources: []Source{give(), give()}, want: []Interface{eth0}},
		{
			name:    "names by place, and asked for",
			sources: []Source{give(Interface{Network: "a/b"}, Interface{Name: "fast", Network: "a/c"}), give(Interface{Network: "a/b"})},
			want:    []Interface{eth0, {Name: "net1", Network: "a/b"}, {Name: "fast", Network: "a/c"}, {Name: "net3", Network: "a/b"}},
		},
		{
			name:    "names that a later source has taken",
			sources: []Source{give(Interface{Network: "default"}, Interface{Network: "default"}), give(Interface{Name: "net1", Network: "a/b"}, Interface{Name: "net3", Network: "a/c"})},
			want:    []Interface{eth0, {Name: "net2", Network: "default"}, {Name: "net4", Network: "default"}, {Name: "net1", Network: "a/b"}, {Name: "net3", Network: "a/c"}},
		},
		{
			name:    "the default route on another interface",
			sources: []Source{give(Interface{Network: "a/b", Gateways: []string{"10.1.0.1"}}, Interface{Network: "a/c", Gateways: []string{"10.2.0.1"}, DefaultRoute: true})},
			want: []Interface{
				{Name: "eth0", Network: "default", Default: true, OwnGateways: true},
				{Name: "net1", Network: "a/b", OwnGateways: true},
				{Name: "net2", Network: "a/c", Gateways: []string{"10.2.0.1"}, DefaultRoute: true},
			},
		},
		{name: "a name twice", sources: []Source{give(Interface{Name: "eth0", Network: "a/b"})}, wantErr: `"eth0"`},
		{name: "a name too long", sources: []Source{give(Interface{Name: "a-name-of-sixteen", Network: "a/b"})}, wantErr: "1 to 15"},
		{name: "a name with a slash", sources: []Source{give(Interface{Name: "a/b", Network: "a/b"})}, wantErr: `"a/b"`},
		{name: "a failing source", sources: []Source{func(*corev1.Pod) ([]Interface, error) { return nil, errors.New("bad annotation") }}, wantErr: "bad annotation"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Interfaces(&corev1.Pod{}, []Interface{Default(false)}, tc.sources)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("error %v, want one that says %q", err, tc.wantErr)
				}
				return
			}
			if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
				t.Errorf("error %v, -want +got:\n%s", err, diff)
			}
		})
	}
}
