package slim

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// arrivals divide the bytes of an answer in different ways.
var arrivals = map[string]func(io.Reader) io.Reader{
	"whole": iotest.DataErrReader, "halves": iotest.HalfReader, "bytes": iotest.OneByteReader,
}

// sentPods encodes a list of pods as the API server sends it.
func sentPods(tb testing.TB, items ...corev1.Pod) []byte {
	tb.Helper()
	list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "9", RemainingItemCount: new(int64(7))}, Items: items}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	data, err := runtime.Encode(podCodec(tb), list)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

func TestReadPods(t *testing.T) {
	large := testPod()
	large.Spec.Containers[0].Args = []string{strings.Repeat("x", 100_000)}
	for name, items := range map[string][]corev1.Pod{
		"none": nil, "one": {*testPod()}, "many": {*testPod(), *large, {}, *testPod()},
	} {
		want := &internalversion.List{ListMeta: metav1.ListMeta{ResourceVersion: "9", RemainingItemCount: new(int64(7))}}
		for i := range items {
			want.Items = append(want.Items, keptOf(t, &items[i]))
		}
		for how, arrive := range arrivals {
			got, err := new(pods).readList(arrive(bytes.NewReader(sentPods(t, items...))))
			if err != nil {
				t.Fatalf("%s, %s: %v", name, how, err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s, %s: -want +got:\n%s", name, how, diff)
			}
		}
	}
}

// An incomplete or different answer is not accepted as a list.
func TestReadPodsLeaves(t *testing.T) {
	data := sentPods(t, *testPod())
	for cut := range data {
		if list, err := new(pods).readList(bytes.NewReader(data[:cut])); err == nil && cut < len(data)-4 {
			t.Errorf("the first %d of %d bytes were read as %v", cut, len(data), list)
		}
	}
	for name, data := range map[string][]byte{
		"pod":     sentPod(t, testPod()),
		"json":    []byte(`{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":[]}`),
		"encoded": append(data[:len(data)-4:len(data)-4], 0x1a, 4, 'g', 'z', 'i', 'p', 0x22, 0),
		// The last content and the last type would count (found by fuzzing).
		"twice":   append(slices.Clip(data), 0x12, 0),
		"retyped": append(slices.Clip(data), 0x0a, 0),
		"shorter": append(append(data[:len(data)-4:len(data)-4], 0x12, 0), data[len(data)-4:]...)[:len(data)-6],
	} {
		if list, err := new(pods).readList(bytes.NewReader(data)); err == nil {
			t.Errorf("%s: read as %v", name, list)
		}
	}
	// The number of the content's first field has two bytes instead of one.
	data = sentPods(t)
	first := bytes.Index(data, []byte{0x0a, 0x09, 0x0a, 0x00, 0x12, 0x01, '9'})
	if first < 0 {
		t.Fatalf("the metadata are not where they were in %q", data)
	}
	longer := slices.Concat(data[:first], []byte{0x8a, 0x00}, data[first+1:])
	if list, err := new(pods).readList(bytes.NewReader(longer)); err == nil {
		t.Errorf("content that is longer than its length: read as %v", list)
	}
}

// For any bytes, readList fails or returns the same as client-go's decoder.
func FuzzReadPods(f *testing.F) {
	f.Add(sentPods(f))
	f.Add(sentPods(f, *testPod(), corev1.Pod{}))
	f.Add(sentPod(f, testPod()))
	standard := podCodec(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := new(pods).readList(bytes.NewReader(data))
		if err != nil {
			return
		}
		o, _, err := standard.Decode(data, nil, nil)
		if err != nil {
			return // the error is in a skipped part
		}
		list := o.(*corev1.PodList)
		want := &internalversion.List{ListMeta: list.ListMeta}
		for i := range list.Items {
			want.Items = append(want.Items, keptOf(t, &list.Items[i]))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-client-go +slim:\n%s", diff)
		}
	})
}

// A list takes one request, for the current state without a limit. If the answer has an
// unexpected format, client-go requests the list again. An error is returned.
func TestLister(t *testing.T) {
	expected := sentPods(t, *testPod())
	text := `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"8"},"items":[{"metadata":{"name":"web-0"}}]}`
	for name, tc := range map[string]struct {
		kind  string
		body  []byte
		code  int
		want  string
		calls int
	}{
		"expected": {runtime.ContentTypeProtobuf, expected, http.StatusOK, "9 web-0", 1},
		"json":     {runtime.ContentTypeJSON, []byte(text), http.StatusOK, "8 web-0", 2},
		"refused":  {runtime.ContentTypeJSON, []byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`), http.StatusForbidden, "Forbidden", 1},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked = append(asked, r.URL.RequestURI())
				w.Header().Set("Content-Type", tc.kind)
				w.WriteHeader(tc.code)
				_, _ = w.Write(tc.body)
			}))
			defer server.Close()
			kept := new(pods)
			codecs := kept.codecs(serializer.WithoutConversionCodecFactory{CodecFactory: clientgoscheme.Codecs})
			l, err := newLister(&rest.Config{Host: server.URL}, server.Client(), corev1.SchemeGroupVersion, "pods", codecs, kept.readList)
			if err != nil {
				t.Fatal(err)
			}
			var got string
			list, err := l.(lister).ListWithContext(t.Context(), metav1.ListOptions{Limit: 500, ResourceVersion: "0"})
			if err != nil {
				got = string(apierrors.ReasonForError(err))
			} else {
				m, err := meta.ListAccessor(list)
				if err != nil {
					t.Fatal(err)
				}
				items, err := meta.ExtractList(list)
				if err != nil || len(items) != 1 {
					t.Fatalf("%d items, %v", len(items), err)
				}
				got = m.GetResourceVersion() + " " + items[0].(metav1.Object).GetName()
			}
			if got != tc.want || len(asked) != tc.calls || asked[0] != "/api/v1/pods" {
				t.Errorf("got %q after %q, want %q after %d calls", got, asked, tc.want, tc.calls)
			}
		})
	}
}
