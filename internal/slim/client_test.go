package slim

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Create sends the same request as controller-runtime's client, and returns the same
// object.
func TestCreate(t *testing.T) {
	created := string(asSent(t, testRecord()))
	refused := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"AlreadyExists","code":409,"message":"podattachments \"web-0\" already exists",` +
		`"details":{"name":"web-0","group":"fairlead.dev","kind":"podattachments"}}`
	pod := `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web-0","namespace":"ns","uid":"u1"}}`
	for name, tc := range map[string]struct {
		object client.Object
		opts   []client.CreateOption
		code   int
		answer string
	}{
		"created":   {testRecord(), nil, http.StatusCreated, created},
		"otherwise": {testRecord(), nil, http.StatusCreated, strings.Replace(created, `"kind":"PodAttachment",`, ``, 1)},
		"refused":   {testRecord(), nil, http.StatusConflict, refused},
		"options":   {testRecord(), []client.CreateOption{client.DryRunAll}, http.StatusCreated, created},
		"pod":       {&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-0"}}, nil, http.StatusCreated, pod},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				asked = append(asked, r.Method+" "+r.URL.RequestURI()+" "+r.Header.Get("Content-Type")+" "+strings.TrimSpace(string(body)))
				w.Header().Set("Content-Type", runtime.ContentTypeJSON)
				w.WriteHeader(tc.code)
				_, _ = io.WriteString(w, tc.answer)
			}))
			defer server.Close()
			scheme := runtime.NewScheme()
			for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
				if err := add(scheme); err != nil {
					t.Fatal(err)
				}
			}
			mapper := meta.NewDefaultRESTMapper(nil)
			mapper.Add(attachmentKind, meta.RESTScopeNamespace)
			mapper.Add(podKind, meta.RESTScopeNamespace)
			config, options := &rest.Config{Host: server.URL}, client.Options{HTTPClient: server.Client(), Scheme: scheme, Mapper: mapper}
			standard, err := client.New(config, options)
			if err != nil {
				t.Fatal(err)
			}
			ours, err := NewClient(config, options)
			if err != nil {
				t.Fatal(err)
			}
			want, got := tc.object.DeepCopyObject().(client.Object), tc.object.DeepCopyObject().(client.Object)
			wantErr, gotErr := standard.Create(t.Context(), want, tc.opts...), ours.Create(t.Context(), got, tc.opts...)
			if diff := cmp.Diff(wantErr, gotErr); diff != "" {
				t.Errorf("errors: -want +got:\n%s", diff)
			}
			if wantErr == nil {
				// Decoders differ in whether they set the kind.
				want.GetObjectKind().SetGroupVersionKind(attachmentKind)
				got.GetObjectKind().SetGroupVersionKind(attachmentKind)
				want.SetManagedFields(nil)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if len(asked) != 2 || asked[0] != asked[1] {
				t.Errorf("asked %q, want the same twice", asked)
			}
		})
	}
}

// If the answer is unreadable, the error names the object.
func TestCreateUnread(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"kind":`)
	}))
	defer server.Close()
	c, err := NewClient(&rest.Config{Host: server.URL}, client.Options{HTTPClient: server.Client(), Scheme: ourScheme(t), Mapper: meta.NewDefaultRESTMapper(nil)})
	if err != nil {
		t.Fatal(err)
	}
	record := testRecord()
	if err := c.Create(t.Context(), record); err == nil || !strings.Contains(err.Error(), record.Namespace+"/"+record.Name) {
		t.Errorf("error %v, want one that names %s/%s", err, record.Namespace, record.Name)
	}
	if diff := cmp.Diff(testRecord(), record); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
}
