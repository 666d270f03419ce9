package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
)

func portPools() []v1alpha1.PortPool {
	none := int32(0)
	of := func(name, node string, spec v1alpha1.PortPoolSpec, conditions ...metav1.Condition) v1alpha1.PortPool {
		spec.Node = node
		return v1alpha1.PortPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec, Status: v1alpha1.PortPoolStatus{Conditions: conditions}}
	}
	return []v1alpha1.PortPool{
		of("node-2-aa-0", "node-2", v1alpha1.PortPoolSpec{Network: "pods", Ready: 4, Cooling: 1, Used: 30}, metav1.Condition{Type: "Ready", Status: "True", Reason: "Filled"}),
		of("node-1-bb-1", "node-1", v1alpha1.PortPoolSpec{Network: "pods", Used: 3}),
		of("node-1-bb-0", "node-1", v1alpha1.PortPoolSpec{Network: "pods", Desired: &none}),
		of("node-3-cc-0", "node-3", v1alpha1.PortPoolSpec{Subnets: []string{"a", "b"}}, metav1.Condition{Type: "Ready", Status: "False", Reason: "PortsNotMade", Message: "the quota is used up"}),
	}
}

func TestPortPools(t *testing.T) {
	const want = `NODE    NETWORK  READY  COOLING  USED  DESIRED  STATE         NAME
node-1  pods         0        0     0  0        Drained       node-1-bb-0
node-1  pods         0        0     3  -        New           node-1-bb-1
node-2  pods         4        1    30  -        Filled        node-2-aa-0
node-3  a,b          0        0     0  -        PortsNotMade  node-3-cc-0

node-3-cc-0: PortsNotMade: the quota is used up
`
	// Columns of numbers are aligned as output.Table does.
	squeeze := func(s string) string {
		var out []string
		for line := range strings.Lines(s) {
			out = append(out, strings.Join(strings.Fields(line), " "))
		}
		return strings.Join(out, "\n")
	}
	if diff := cmp.Diff(squeeze(want), squeeze(portPoolsText(portPoolList{Pools: buildPortPools(portPools())}))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := portPoolsText(portPoolList{Pools: buildPortPools(nil)}); got != "No pools of ports.\n" {
		t.Errorf("%q", got)
	}
}

// fill and drain write the desired count into the first object of each pool of the nodes.
func TestFillAndDrainPools(t *testing.T) {
	var patches []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodPatch {
			body, _ := io.ReadAll(r.Body)
			patches = append(patches, strings.TrimPrefix(r.URL.Path, "/apis/fairlead.dev/v1alpha1/portpools/")+" "+string(body))
			_ = json.NewEncoder(w).Encode(v1alpha1.PortPool{TypeMeta: metav1.TypeMeta{APIVersion: "fairlead.dev/v1alpha1", Kind: "PortPool"}})
			return
		}
		_ = json.NewEncoder(w).Encode(v1alpha1.PortPoolList{TypeMeta: metav1.TypeMeta{APIVersion: "fairlead.dev/v1alpha1", Kind: "PortPoolList"}, Items: portPools()})
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":"` + server.URL + `"}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{}}]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args    []string
		code    int
		patches []string
		says    string
	}{
		{[]string{"pool", "drain", "node-1", "node-2"}, 0, []string{`node-1-bb-0 {"spec":{"desired":0}}`, `node-2-aa-0 {"spec":{"desired":0}}`}, "node-2-aa-0: ready ports: 0"},
		{[]string{"pool", "fill", "node-1", "--ports", "12"}, 0, []string{`node-1-bb-0 {"spec":{"desired":12}}`}, "ready ports: 12"},
		{[]string{"pool", "fill", "node-1"}, 0, []string{`node-1-bb-0 {"spec":{"desired":null}}`}, "by the configuration"},
		{[]string{"pool", "fill", "node-1", "--ports", "65"}, 2, nil, "--ports 65: must be 1 to 64"},
		{[]string{"pool", "fill", "node-1", "node-9"}, 2, nil, "no pool of ports on node-9"},
		{[]string{"pools", "--ports"}, 0, nil, "Drained"},
		{[]string{"pools", "--ports", "default"}, 2, nil, "leave out --map and NAME"},
	} {
		patches = nil
		var out bytes.Buffer
		code := New("fairlead", &out, &out).Run(t.Context(), append(slices.Clone(tc.args), "--kubeconfig", file))
		slices.Sort(patches)
		if diff := cmp.Diff(tc.patches, patches); code != tc.code || diff != "" || !strings.Contains(out.String(), tc.says) {
			t.Errorf("%v: code %d, %s\npatches (-want +got):\n%s", tc.args, code, out.String(), diff)
		}
	}
}
