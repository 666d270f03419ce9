package slim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/watch"
	restwatch "k8s.io/client-go/rest/watch"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// testRecord returns a PodAttachment with all fields that the program writes.
func testRecord() *v1alpha1.PodAttachment {
	at, micro := metav1.NewTime(time.Unix(1_700_000_000, 0)), metav1.NewMicroTime(time.Unix(1_700_000_000, 123_000))
	return &v1alpha1.PodAttachment{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "PodAttachment"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web-12345678", UID: "1", ResourceVersion: "7", Generation: 3,
			CreationTimestamp: at, DeletionTimestamp: &at, DeletionGracePeriodSeconds: new(int64(0)),
			Labels: map[string]string{v1alpha1.LabelNode: "node-1"}, Annotations: map[string]string{"note": "\"managedFields\":[ \\ \u2028 <&>"},
			Finalizers:      []string{v1alpha1.ReleaseFinalizer},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "web", UID: "12345678"}},
		},
		Spec: v1alpha1.PodAttachmentSpec{
			PodName: "web", PodUID: "12345678", NodeName: "node-1", NodeUID: "0d9c1f6e-node",
			Interfaces: []v1alpha1.Interface{
				{Name: "eth0", Network: "default", Driver: "native", Default: true, Addresses: []string{"10.1.0.5/24"}, Gateways: []string{"10.1.0.1"}, MTU: 1400, Binding: v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{Name: "fairlead0"}}},
			},
			Summary: v1alpha1.AttachmentSummary{Interfaces: "eth0", Addresses: "10.1.0.5"},
		},
		Status: v1alpha1.PodAttachmentStatus{
			Sandbox:    &v1alpha1.Sandbox{ID: "c0ffee", BootID: "b", State: v1alpha1.SandboxAttached, AttachedAt: &micro},
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionAttached, Status: metav1.ConditionTrue, Reason: "Plugged", Message: "plugged", LastTransitionTime: at}},
		},
	}
}

// managed are managed fields, the API server's account of who wrote which field.
var managed = []metav1.ManagedFieldsEntry{{
	Manager: "fairlead-node", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
	FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{".":{},"f:}]\"":{}}}}`),
}}

// asSent encodes an object as the API server sends custom resources: with sorted
// fields.
func asSent(tb testing.TB, o runtime.Object) []byte {
	tb.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		tb.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		tb.Fatal(err)
	}
	if text, err = json.Marshal(fields); err != nil {
		tb.Fatal(err)
	}
	return text
}

// decodeAttachment returns the same as client-go's decoder, except for managed fields.
func TestDecodeAttachment(t *testing.T) {
	want := testRecord()
	sent := want.DeepCopy()
	sent.ManagedFields = managed
	got, err := decodeAttachment(asSent(t, sent))
	if err != nil {
		t.Fatal(err)
	}
	want.TypeMeta = metav1.TypeMeta{}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A watch returns the same events as that of client-go, for the event format of today's
// API server and for other formats, and however the text is divided.
func TestWatchAttachments(t *testing.T) {
	long := testRecord()
	long.Annotations["long"] = strings.Repeat("0123456789", 20_000)
	object := string(asSent(t, testRecord()))
	for name, text := range map[string]string{
		"none":              "",
		"two":               event("ADDED", object) + event("MODIFIED", object),
		"deleted":           event("DELETED", object),
		"bookmark":          event("BOOKMARK", `{"apiVersion":"fairlead.dev/v1alpha1","kind":"PodAttachment","metadata":{"resourceVersion":"9"}}`),
		"error":             event("ERROR", `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}`),
		"long":              event("ADDED", object) + event("ADDED", string(asSent(t, long))) + event("ADDED", object),
		"otherOrder":        `{"object":` + object + `,"type":"ADDED"}` + "\n",
		"otherObjectOrder":  event("ADDED", strings.Replace(object, `"apiVersion":"fairlead.dev/v1alpha1",`, "", 1)[:len(object)-len(`"apiVersion":"fairlead.dev/v1alpha1",`)-1]+`,"apiVersion":"fairlead.dev/v1alpha1"}`),
		"moreFields":        `{"type":"ADDED","object":` + object + `,"more":{}}` + "\n",
		"blanks":            `{ "type": "ADDED", "object": ` + object + " }\r\n",
		"escapedType":       `{"type":"\u0041DDED","object":` + object + "}\n",
		"unknownType":       event("WRONG", object),
		"otherKind":         event("ADDED", `{"apiVersion":"fairlead.dev/v1alpha1","kind":"IPPool","metadata":{"name":"blue"}}`),
		"wrongType":         event("ADDED", `{"apiVersion":"fairlead.dev/v1alpha1","kind":"PodAttachment","metadata":"x"}`),
		"damaged":           event("ADDED", object[:len(object)-20]) + event("ADDED", object),
		"cutAfterAnEvent":   event("ADDED", object) + `{"type":"ADD`,
		"cutBeforeTheBreak": event("ADDED", object) + `{"type":"ADDED","object":` + object + `}`,
	} {
		t.Run(name, func(t *testing.T) {
			want := watched(t, text, func(c serializer.WithoutConversionCodecFactory) runtime.NegotiatedSerializer { return c }, iotest.DataErrReader)
			for how, reader := range map[string]func(io.Reader) io.Reader{"whole": iotest.DataErrReader, "halves": iotest.HalfReader, "bytes": iotest.OneByteReader} {
				got := watched(t, text, func(c serializer.WithoutConversionCodecFactory) runtime.NegotiatedSerializer {
					return attachmentCodecs(c)
				}, reader)
				switch name {
				case "cutBeforeTheBreak":
					// client-go also accepts an event without its newline.
					want = append(want[:1], "error unexpected EOF")
				case "moreFields":
					want = []string{"error"}
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s: -client-go +slim:\n%s", how, diff)
				}
			}
		})
	}
}

func event(kind, object string) string {
	return fmt.Sprintf(`{"type":%q,"object":%s}`+"\n", kind, object)
}

// ourScheme has only the kinds of Fairlead.
func ourScheme(tb testing.TB) *runtime.Scheme {
	tb.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		tb.Fatal(err)
	}
	return scheme
}

// watched returns the events that a watch with the given codecs decodes from text, up
// to the end or the first error.
func watched(t *testing.T, text string, with func(serializer.WithoutConversionCodecFactory) runtime.NegotiatedSerializer, how func(io.Reader) io.Reader) []string {
	t.Helper()
	codecs := with(serializer.WithoutConversionCodecFactory{CodecFactory: serializer.NewCodecFactory(ourScheme(t))})
	object, events, framer, err := runtime.NewClientNegotiator(codecs, v1alpha1.GroupVersion).StreamDecoder(runtime.ContentTypeJSON, nil)
	if err != nil {
		t.Fatal(err)
	}
	decoder := restwatch.NewDecoder(streaming.NewDecoder(framer.NewFrameReader(io.NopCloser(how(strings.NewReader(text)))), events), object)
	defer decoder.Close()
	var got []string
	for {
		kind, o, err := decoder.Decode()
		switch {
		case errors.Is(err, io.EOF):
			return got
		case errors.Is(err, io.ErrUnexpectedEOF):
			return append(got, "error unexpected EOF")
		case err != nil:
			return append(got, "error")
		}
		got = append(got, string(kind)+" "+dump(t, kind, o))
	}
}

// dump returns an object as text, without managed fields.
func dump(t *testing.T, kind watch.EventType, o runtime.Object) string {
	t.Helper()
	if m, ok := o.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatalf("%s: %v", kind, err)
	}
	return fmt.Sprintf("%T %s", o, text)
}

// For any text, the decoder fails or returns the same as client-go's.
func FuzzDecodeAttachment(f *testing.F) {
	record := testRecord()
	f.Add(asSent(f, record))
	record.ManagedFields = managed
	f.Add(asSent(f, record))
	f.Add([]byte(`{"apiVersion":"fairlead.dev/v1alpha1","kind":"PodAttachment","metadata":{"managedFields":[}}`))
	standard := serializer.NewCodecFactory(ourScheme(f)).UniversalDeserializer()
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := decodeAttachment(data)
		if err != nil {
			return
		}
		o, _, err := standard.Decode(data, nil, nil)
		if err != nil {
			// The decoder skips managed fields, also invalid ones.
			if !bytes.Contains(bytes.ToLower(data), []byte("managedfields")) {
				t.Fatalf("client-go does not read it: %v", err)
			}
			return
		}
		want := o.(*v1alpha1.PodAttachment)
		want.TypeMeta = metav1.TypeMeta{}
		if a, b := dump(t, "", want), dump(t, "", got); a != b {
			t.Errorf("client-go %s\nslim %s", a, b)
		}
	})
}

func BenchmarkDecodeAttachment(b *testing.B) {
	record := testRecord()
	record.ManagedFields = managed
	data := asSent(b, record)
	standard := serializer.NewCodecFactory(ourScheme(b)).UniversalDeserializer()
	benchmark(b, data, func() error { _, err := decodeAttachment(data); return err }, func() error { _, _, err := standard.Decode(data, nil, nil); return err })
}

// benchmark measures decoding of data by this package and by client-go.
func benchmark(b *testing.B, data []byte, slim, standard func() error) {
	b.Helper()
	for name, decode := range map[string]func() error{"slim": slim, "client-go": standard} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if err := decode(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// splitEvent returns the same parts of an event as a JSON decoder.
func FuzzSplitEvent(f *testing.F) {
	f.Add([]byte(event("ADDED", string(asSent(f, testRecord())))))
	f.Add([]byte(`{"type":"\u0041DDED","object":{}}`))
	f.Add([]byte(`{"type":"ADDED","object":{},"more":{}}`))
	f.Add([]byte(`{"type":"ADDED","more":"x","object":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var got, want metav1.WatchEvent
		if !splitEvent(data, &got) || !json.Valid(got.Object.Raw) {
			return // the object's decoder rejects it
		}
		if err := json.Unmarshal(data, &want); err != nil {
			t.Fatal(err)
		}
		if want.Type != got.Type || !bytes.Equal(bytes.TrimSpace(want.Object.Raw), bytes.TrimSpace(got.Object.Raw)) {
			t.Errorf("want %s %s, got %s %s", want.Type, want.Object.Raw, got.Type, got.Object.Raw)
		}
	})
}
