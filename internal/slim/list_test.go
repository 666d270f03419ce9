package slim

import (
	"bytes"
	"fmt"
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

	"fairlead.dev/fairlead/api/v1alpha1"
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

// sentRecords encodes a list of PodAttachments as the API server sends it.
func sentRecords(tb testing.TB, records ...*v1alpha1.PodAttachment) string {
	tb.Helper()
	var items []string
	for _, r := range records {
		items = append(items, string(asSent(tb, r)))
	}
	return fmt.Sprintf(`{"apiVersion":"fairlead.dev/v1alpha1","items":[%s],"kind":"PodAttachmentList","metadata":{"continue":"","resourceVersion":"9"}}`+"\n",
		strings.Join(items, ","))
}

func TestReadAttachments(t *testing.T) {
	with := testRecord()
	with.ManagedFields = managed
	want := testRecord()
	want.TypeMeta = metav1.TypeMeta{}
	for name, tc := range map[string]struct {
		text string
		want int
	}{
		"none":       {sentRecords(t), 0},
		"two":        {sentRecords(t, with, testRecord()), 2},
		"otherOrder": {`{"kind":"PodAttachmentList","apiVersion":"fairlead.dev/v1alpha1","metadata":{"resourceVersion":"9"}, "more": {"items":[1]},"items":[` + string(asSent(t, with)) + `]}`, 1},
	} {
		for how, arrive := range arrivals {
			list, err := readAttachments(arrive(strings.NewReader(tc.text)))
			if err != nil {
				t.Fatalf("%s, %s: %v", name, how, err)
			}
			if len(list.Items) != tc.want || list.ResourceVersion != "9" {
				t.Errorf("%s, %s: %d of version %s, want %d", name, how, len(list.Items), list.ResourceVersion, tc.want)
			}
			for _, got := range list.Items {
				if diff := cmp.Diff(runtime.Object(want), got); diff != "" {
					t.Errorf("%s, %s: -want +got:\n%s", name, how, diff)
				}
			}
		}
	}
}

// An incomplete or different answer is not accepted as a list.
func TestReadAttachmentsLeaves(t *testing.T) {
	text := strings.TrimSpace(sentRecords(t, testRecord()))
	for cut := range len(text) {
		if list, err := readAttachments(strings.NewReader(text[:cut])); err == nil {
			t.Errorf("the first %d of %d bytes were read as %v", cut, len(text), list)
		}
	}
	for name, text := range map[string]string{
		"object":    string(asSent(t, testRecord())),
		"status":    `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure"}`,
		"other":     strings.ReplaceAll(text, `"kind":"PodAttachment"`, `"kind":"IPPool"`),
		"noObject":  strings.Replace(text, `"items":[`, `"items":[7,`, 1),
		"behind":    text + "{}",
		"noVersion": strings.Replace(text, `"resourceVersion":"9"`, `"resourceVersion":""`, 1),
	} {
		if list, err := readAttachments(strings.NewReader(text)); err == nil {
			t.Errorf("%s: read as %v", name, list)
		}
	}
}

// For any text, readAttachments fails or returns the same as client-go's decoder.
func FuzzReadAttachments(f *testing.F) {
	with := testRecord()
	with.ManagedFields = managed
	f.Add([]byte(sentRecords(f)))
	f.Add([]byte(sentRecords(f, with, testRecord())))
	f.Add([]byte(`{"apiVersion":"fairlead.dev/v1alpha1","kind":"PodAttachmentList","metadata":{"resourceVersion":"9"},"items":null}`))
	standard := serializer.NewCodecFactory(ourScheme(f)).UniversalDeserializer()
	kind := v1alpha1.GroupVersion.WithKind("PodAttachmentList")
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := readAttachments(bytes.NewReader(data))
		if err != nil {
			return
		}
		o, _, err := standard.Decode(data, &kind, nil)
		if err != nil {
			return // the error is in a skipped part, or the kind is another
		}
		list, ok := o.(*v1alpha1.PodAttachmentList)
		if !ok {
			return
		}
		if len(list.Items) != len(got.Items) || list.ResourceVersion != got.ResourceVersion {
			t.Fatalf("client-go: %d of %q, slim: %d of %q", len(list.Items), list.ResourceVersion, len(got.Items), got.ResourceVersion)
		}
		for i := range list.Items {
			list.Items[i].TypeMeta = metav1.TypeMeta{}
			if a, b := dump(t, "", &list.Items[i]), dump(t, "", got.Items[i]); a != b {
				t.Errorf("client-go %s\nslim %s", a, b)
			}
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
