package devices

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"fairlead.dev/fairlead/internal/fault"
)

// kubelet plays the kubelet, with the library that the kubelet has.
type kubelet struct {
	podresources.UnimplementedPodResourcesListerServer
	pods []*podresources.PodResources
	// get and list are the errors of the methods.
	get, list error
}

func (k *kubelet) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{PodResources: k.pods}, k.list
}

func (k *kubelet) Get(_ context.Context, r *podresources.GetPodResourcesRequest) (*podresources.GetPodResourcesResponse, error) {
	for _, p := range k.pods {
		if k.get == nil && p.Name == r.PodName && p.Namespace == r.PodNamespace {
			return &podresources.GetPodResourcesResponse{PodResources: p}, nil
		}
	}
	if k.get == nil {
		return nil, fmt.Errorf("pod %s in namespace %s not found", r.PodName, r.PodNamespace)
	}
	return nil, k.get
}

// serve serves the kubelet until the test ends, and returns its socket.
func (k *kubelet) serve(t *testing.T) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(s, k)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return socket
}

func with(namespace, name string, containers ...[]*podresources.ContainerDevices) *podresources.PodResources {
	p := &podresources.PodResources{Namespace: namespace, Name: name, CpuIds: []int64{1, 2}}
	for n, d := range containers {
		p.Containers = append(p.Containers, &podresources.ContainerResources{
			Name: fmt.Sprint("c", n), Devices: d, CpuIds: []int64{3}, Memory: []*podresources.ContainerMemory{{MemoryType: "memory", Size: 7}},
		})
	}
	return p
}

func of(resource string, ids ...string) *podresources.ContainerDevices {
	return &podresources.ContainerDevices{ResourceName: resource, DeviceIds: ids, Topology: &podresources.TopologyInfo{Nodes: []*podresources.NUMANode{{ID: 1}}}}
}

func TestOf(t *testing.T) {
	pods := []*podresources.PodResources{
		with("blue", "other", []*podresources.ContainerDevices{of("intel.com/a", "0000:3b:02.9")}),
		with("green", "web", []*podresources.ContainerDevices{of("intel.com/a", "0000:3b:02.8")}),
		with("blue", "web",
			[]*podresources.ContainerDevices{of("intel.com/a", "0000:3b:02.3", "0000:3b:02.1"), of("intel.com/b", "0000:3b:03.1")},
			nil,
			[]*podresources.ContainerDevices{of("intel.com/a", "0000:3b:02.2", "0000:3b:02.1")}),
		with("blue", "none", nil),
	}
	want := map[string][]string{"intel.com/a": {"0000:3b:02.1", "0000:3b:02.2", "0000:3b:02.3"}, "intel.com/b": {"0000:3b:03.1"}}
	for _, tc := range []struct {
		name, pod string
		kubelet   kubelet
		want      map[string][]string
		says      string
	}{
		{"a pod with devices", "web", kubelet{pods: pods}, want, ""},
		{"a pod without devices", "none", kubelet{pods: pods}, map[string][]string{}, ""},
		{"a kubelet without Get", "web", kubelet{pods: pods, get: status.Error(codes.Unimplemented, "no Get")}, want, ""},
		{"a kubelet with Get switched off", "web", kubelet{pods: pods, get: errors.New("PodResources API Get method disabled")}, want, ""},
		{"a pod that the kubelet does not know", "missing", kubelet{pods: pods}, nil, "does not list the pod among its 4"},
		{"a kubelet that refuses", "web", kubelet{get: errors.New("no"), list: status.Error(codes.ResourceExhausted, "rejected by rate limit")}, nil, `status "8": "rejected by rate limit"`},
		{"a kubelet without pods", "web", kubelet{}, nil, "does not list the pod among its 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := New(tc.kubelet.serve(t)).Of(t.Context(), "blue", tc.pod)
			if diff := cmp.Diff(tc.want, got); diff != "" || (err != nil) != (tc.says != "") {
				t.Fatalf("error %v, -want +got:\n%s", err, diff)
			}
			if err != nil && (!errors.Is(err, fault.ErrNotReady) || !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), "kubelet.sock")) {
				t.Error(err)
			}
		})
	}
}

func TestKubeletAway(t *testing.T) {
	_, err := New(filepath.Join(t.TempDir(), "kubelet.sock")).Of(t.Context(), "blue", "web")
	if !errors.Is(err, fault.ErrNotReady) || !strings.Contains(err.Error(), "no such file") {
		t.Error(err)
	}
	silent := filepath.Join(t.TempDir(), "kubelet.sock")
	l, err := net.Listen("unix", silent)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := New(silent).Of(ctx, "blue", "web"); !errors.Is(err, fault.ErrNotReady) || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func FuzzReadPods(f *testing.F) {
	f.Add(getRequest("blue", "web"))
	f.Add([]byte("\x0a\x12\x0a\x03web\x12\x04blue\x1a\x05\x0a\x03app"))
	f.Fuzz(func(t *testing.T, reply []byte) {
		pods, err := readPods(reply)
		if err == nil && len(pods) > len(reply) {
			t.Errorf("%d pods in %d bytes", len(pods), len(reply))
		}
	})
}
