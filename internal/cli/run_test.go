package cli

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"fairlead.dev/fairlead/internal/run"
)

// result is the outcome of a call of the program.
type result struct {
	Code   int
	Stdout string
	Stderr string
}

func call(t *testing.T, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := New("fairlead", &stdout, &stderr).Run(t.Context(), args)
	return result{code, stdout.String(), stderr.String()}
}

// kubeconfigFor writes a kubeconfig for a server, with the namespace shop, and returns
// its path.
func kubeconfigFor(t *testing.T, server string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["c"] = &clientcmdapi.Cluster{Server: server}
	cfg.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", Namespace: "shop"}
	cfg.CurrentContext = "x"
	if err := clientcmd.WriteToFile(*cfg, path); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestBadCalls(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "") // not in a pod
	garbled := filepath.Join(t.TempDir(), "garbled")
	if err := os.WriteFile(garbled, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		args []string
		want string // in the error
	}{
		{"no kubeconfig", []string{"status"}, "there is no kubeconfig: give --kubeconfig FILE, set KUBECONFIG, or write ~/.kube/config"},
		{"no kubeconfig for pods", []string{"pods"}, "there is no kubeconfig"},
		{"kubeconfig that is not there", []string{"pools", "--kubeconfig", "/nowhere/config"}, "kubeconfig: stat /nowhere/config: "},
		{"kubeconfig that is none", []string{"pools", "--kubeconfig", garbled}, "kubeconfig: error loading config file"},
		{"context that is not there", []string{"pools", "--context", "y", "--kubeconfig", kubeconfigFor(t, "https://127.0.0.1:1")}, `kubeconfig: context "y" does not exist`},
		{"unknown format", []string{"status", "-o", "yaml"}, `invalid argument "yaml" for "-o, --output" flag: must be "table" or "json"`},
		{"unknown command", []string{"stats"}, `unknown command "stats"`},
		{"argument", []string{"pods", "web"}, `unknown command "web"`},
		{"map of which pool", []string{"pools", "--map"}, "--map draws one pool: name it, as in fairlead pools default --map"},
		{"who is no address", []string{"who", "web"}, `"web" is not an IP address`},
		{"pod of two namespaces", []string{"explain", "pod", "shop/web", "-n", "pay"}, "shop/web is in namespace shop and --namespace says pay"},
		{"pod of no namespace", []string{"explain", "pod", "/web"}, `"/web" is not a pod: write it as namespace/name`},
		{"explain of what", []string{"explain", "web"}, `unknown command "web" for "fairlead explain"`},
		{"audit of one address", []string{"ipam", "audit", "10.0.0.1"}, `unknown command "10.0.0.1"`},
		{"page for other machines", []string{"ui", "--listen", "0.0.0.0:8080", "--kubeconfig", kubeconfigFor(t, "https://127.0.0.1:1")}, "--listen: 0.0.0.0:8080 is reached from other machines, and the page has no login: use an address such as 127.0.0.1:8080"},
		{"page without a port", []string{"ui", "--listen", "127.0.0.1", "--kubeconfig", kubeconfigFor(t, "https://127.0.0.1:1")}, `--listen: "127.0.0.1" is no address with a port`},
		{"page without a kubeconfig", []string{"ui"}, "there is no kubeconfig"},
		{"multus without a dry run", []string{"migrate", "multus"}, "it changes nothing by itself: give --dry-run for the plan, then switch one node after the other by fairlead migrate multus node NAME"},
		{"multus without a node", []string{"migrate", "multus", "node"}, "accepts 1 arg(s), received 0"},
		{"configuration of Multus that is not there", []string{"migrate", "multus", "--dry-run", "--config", "/nowhere/conf"}, "--config: open /nowhere/conf"},
		{"one namespace and all", []string{"pods", "-A", "-n", "shop"}, "--all-namespaces and --namespace exclude each other"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := call(t, tt.args...)
			if got.Code != exitError || got.Stdout != "" || !strings.Contains(got.Stderr, "fairlead: "+tt.want) {
				t.Errorf("got %+v, want code %d and the error %q", got, exitError, tt.want)
			}
		})
	}
}

// TestBadServers: servers that are not a Kubernetes API server with Fairlead's CRDs.
func TestBadServers(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	answer := func(code int, body string) string {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_, _ = w.Write([]byte(body))
		}))
		t.Cleanup(server.Close)
		return server.URL
	}
	withoutCRDs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/apis/fairlead.dev/") {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"PodList","apiVersion":"v1","items":[]}`))
	}))
	t.Cleanup(withoutCRDs.Close)
	forbidden := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"pods is forbidden: User \"eve\" cannot list resource \"pods\""}`
	for _, tt := range []struct {
		name   string
		server string
		want   string // in the error
	}{
		{"nobody listens", "http://" + closed.Addr().String(), "no answer from the API server at http://" + closed.Addr().String() + ": dial tcp "},
		{"something else", answer(http.StatusNotFound, "{}"), "is not a Kubernetes API server"},
		{"credentials refused", answer(http.StatusUnauthorized, "{}"), "does not accept the kubeconfig's credentials"},
		{"no rights", answer(http.StatusForbidden, forbidden), `list pods: pods is forbidden: User "eve" cannot list resource "pods"`},
		{"no CRDs", withoutCRDs.URL, "Fairlead's CRDs are not installed in the cluster at " + withoutCRDs.URL + ": it has no podattachments.fairlead.dev"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, command := range [][]string{{"status"}, {"pods"}, {"explain", "pod", "web"}, {"ipam", "audit"}} {
				got := call(t, append(command, "--kubeconfig", kubeconfigFor(t, tt.server))...)
				if got.Code != exitError || got.Stdout != "" || !strings.Contains(got.Stderr, tt.want) {
					t.Errorf("%v: got %+v, want code %d and the error %q", command, got, exitError, tt.want)
				}
			}
		})
	}
}

// TestWithoutRightToReadEvents: the pods are shown without the reason.
func TestWithoutRightToReadEvents(t *testing.T) {
	answers := map[string]string{
		"/apis/fairlead.dev/v1alpha1/nodenetworks":                   `{"kind":"NodeNetworkList","apiVersion":"fairlead.dev/v1alpha1","items":[{"metadata":{"name":"node-1"}}]}`,
		"/apis/fairlead.dev/v1alpha1/namespaces/shop/podattachments": `{"kind":"PodAttachmentList","apiVersion":"fairlead.dev/v1alpha1","items":[]}`,
		"/api/v1/namespaces/shop/pods":                               `{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"namespace":"shop","name":"web"},"spec":{"nodeName":"node-1"}}]}`,
	}
	asked := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		body, ok := answers[r.URL.Path]
		if !ok {
			asked = asked || r.URL.Path == "/apis/events.k8s.io/v1/namespaces/shop/events"
			w.WriteHeader(http.StatusForbidden)
			body = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`
		}
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(server.Close)
	got := call(t, "pods", "--kubeconfig", kubeconfigFor(t, server.URL))
	want := result{Stdout: "POD   NODE     INTERFACES   ADDRESSES   STATE   REASON     AGE\n" +
		"web   node-1   -            -           None    NoRecord   -\n"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if !asked {
		t.Error("events were not asked for")
	}
}

func TestVersion(t *testing.T) {
	if got := call(t, "version"); got.Code != exitOK || !strings.HasPrefix(got.Stdout, "fairlead "+run.Version+" (go") {
		t.Errorf("got %+v", got)
	}
	var view versionView
	if err := json.Unmarshal([]byte(call(t, "version", "-o", "json").Stdout), &view); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(run.Version, view.Version); diff != "" {
		t.Error(diff)
	}
}

func TestKubectlPlugin(t *testing.T) {
	var stdout bytes.Buffer
	code := New("kubectl-fairlead", &stdout, &stdout).Run(t.Context(), []string{"pods", "--help"})
	if code != exitOK || !strings.Contains(stdout.String(), "kubectl fairlead pods [flags]") {
		t.Errorf("exit code %d, help:\n%s", code, stdout.String())
	}
}
