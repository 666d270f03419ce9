package slim

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"fairlead.dev/fairlead/internal/pod"
)

// testPod returns a pod with all fields that are kept, and some that are not.
func testPod() *corev1.Pod {
	at := metav1.NewTime(time.Unix(1_700_000_000, 0))
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web-0", GenerateName: "web-", UID: "12345678", ResourceVersion: "7", Generation: 2,
			CreationTimestamp: at, DeletionTimestamp: &at, DeletionGracePeriodSeconds: new(int64(30)),
			Labels:          map[string]string{"app": "web", "empty": ""},
			Annotations:     map[string]string{"checksum/config": "0", pod.AnnotationNetworks: "storage"},
			Finalizers:      []string{"example.com/wait"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", UID: "3", Controller: new(true), BlockOwnerDeletion: new(true)}},
			ManagedFields:   managed,
		},
		Spec: corev1.PodSpec{
			NodeName: "node-1", HostNetwork: true, Priority: new(int32(-7)),
			Containers: []corev1.Container{{Name: "main", Image: "example.com/web", Env: []corev1.EnvVar{{Name: "A", Value: "b"}}}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.0.5", StartTime: &at},
	}
}

// podCodec returns client-go's serializer of protobuf.
func podCodec(tb testing.TB) runtime.Serializer {
	tb.Helper()
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		tb.Fatal(err)
	}
	info, ok := runtime.SerializerInfoForMediaType(serializer.NewCodecFactory(scheme).SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		tb.Fatal("no protobuf")
	}
	return info.Serializer
}

// sentPod encodes a pod as the API server sends it.
func sentPod(tb testing.TB, o runtime.Object) []byte {
	tb.Helper()
	o.GetObjectKind().SetGroupVersionKind(podKind)
	data, err := runtime.Encode(podCodec(tb), o)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

// keptOf returns the kept part of a pod that client-go has decoded.
func keptOf(t *testing.T, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	p = p.DeepCopy()
	if len(p.Spec.Containers) == 0 {
		p.Spec.Containers = []corev1.Container{{}}
	}
	kept, err := new(pods).slim(p)
	if err != nil {
		t.Fatal(err)
	}
	p = kept.(*corev1.Pod)
	p.TypeMeta = metav1.TypeMeta{}
	return p
}

func TestDecodePod(t *testing.T) {
	for name, p := range map[string]*corev1.Pod{
		"full":  testPod(),
		"empty": {},
		"unscheduled": {
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-0"},
			Status:     corev1.PodStatus{Phase: corev1.PodPending},
		},
		"bookmark": {ObjectMeta: metav1.ObjectMeta{ResourceVersion: "9"}},
		"with devices": {Spec: corev1.PodSpec{
			Containers: []corev1.Container{
				{Name: "main", Image: "example.com/web", Env: []corev1.EnvVar{{Name: "A", Value: "b"}}, Resources: corev1.ResourceRequirements{
					Limits:   corev1.ResourceList{"intel.com/limit": resource.MustParse("7")},
					Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"), "intel.com/a": resource.MustParse("2")},
				}},
				{Name: "side", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"intel.com/a": resource.MustParse("1")}}},
			},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := new(pods)
			for range 2 { // the second shares the labels of the first
				got, err := s.decode(sentPod(t, p.DeepCopy()))
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(keptOf(t, p), got); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
				if devices := pod.Requests(got)["intel.com/a"]; (devices == 3) != (name == "with devices") {
					t.Errorf("%d devices are kept", devices)
				}
				again, err := s.slim(got.DeepCopy())
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(got, again); diff != "" {
					t.Errorf("kept again: -want +got:\n%s", diff)
				}
			}
		})
	}
}

// Data that is no pod in protobuf is left to client-go.
func TestDecodePodLeaves(t *testing.T) {
	data := sentPod(t, testPod())
	list := &corev1.PodList{Items: []corev1.Pod{*testPod()}}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	sentList, err := runtime.Encode(podCodec(t), list)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(testPod())
	if err != nil {
		t.Fatal(err)
	}
	raw, err := testPod().Marshal()
	if err != nil {
		t.Fatal(err)
	}
	twice, err := (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "Pod"}, Raw: slices.Concat(raw, raw)}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"nothing": nil, "prefix": data[:4], "cut": data[:len(data)/2], "list": sentList, "json": text,
		"twice": append([]byte("k8s\x00"), twice...),
	} {
		if p, err := new(pods).decode(data); err == nil {
			t.Errorf("%s: decoded %v", name, p)
		}
	}
	decoder := objectDecoder{podCodec(t), new(pods).codecs(serializer.WithoutConversionCodecFactory{})}
	o, _, err := decoder.Decode(sentList, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if l, ok := o.(*corev1.PodList); !ok || len(l.Items) != 1 || len(l.Items[0].Spec.Containers) != 1 {
		t.Errorf("a list became %v", o)
	}
	if _, _, err := decoder.Decode(data[:len(data)/2], nil, nil); err == nil {
		t.Error("half of a pod was decoded")
	}
}

// For any bytes, the decoder fails or returns the same as client-go's.
func FuzzDecodePod(f *testing.F) {
	f.Add(sentPod(f, testPod()))
	f.Add(sentPod(f, &corev1.Pod{}))
	standard := podCodec(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := new(pods).decode(data)
		if err != nil {
			return
		}
		o, _, err := standard.Decode(data, nil, nil)
		if err != nil {
			return // the error is in a skipped part of the pod
		}
		want := keptOf(t, o.(*corev1.Pod))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-client-go +slim:\n%s", diff)
		}
	})
}

func BenchmarkDecodePod(b *testing.B) {
	data := sentPod(b, testPod())
	standard, kept := podCodec(b), new(pods)
	benchmark(b, data, func() error { _, err := kept.decode(data); return err }, func() error { _, _, err := standard.Decode(data, nil, nil); return err })
}
