package deploy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/internal/cli"
	"fairlead.dev/fairlead/test/cluster"
)

// uiAccount is the ServiceAccount of the live picture.
const uiAccount = "fairlead-ui"

// testUI installs the live picture, tries the rights of its account, and opens it with the
// rights of two accounts.
func testUI(t *testing.T, c *cluster.Cluster) {
	file := path(t, "ui", "ui.yaml")
	c.Kubectl("apply", "--server-side", "-f", file)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := cluster.WriteAccount(t.Context(), c.Client, c.REST, kubeconfig, uiAccount, nil); err != nil {
		t.Fatal(err)
	}
	a := newAccount(t, kubeconfig)
	c.Eventually(t, "the rights of the live picture", func(ctx context.Context) error {
		if code, message := a.call(ctx, t, http.MethodGet, ours+"ippools", ""); code != http.StatusOK {
			return fmt.Errorf("%d %s", code, message)
		}
		return nil
	})
	testRights(t, a, map[string]string{
		"pods": "list watch", "podattachments": "list watch", "nodenetworks": "list watch", "ippools": "list watch",
		"ipblocks": "list watch", "ipreservations": "list watch", "portpools": "list watch", "events": "list watch",
		"networkattachmentdefinitions": "list watch",
	})
	want := map[string]string{
		"pods": "Listed", "podattachments.fairlead.dev": "Listed", "nodenetworks.fairlead.dev": "Listed", "ippools.fairlead.dev": "Listed",
		"ipblocks.fairlead.dev": "Listed", "ipreservations.fairlead.dev": "Listed", "portpools.fairlead.dev": "Listed",
		"events of fairlead-controller": "Listed", "events of fairlead.dev/node": "Listed",
		"network-attachment-definitions.k8s.cni.cncf.io": "Missing",
	}
	if diff := cmp.Diff(want, uiStates(t, kubeconfig)); diff != "" {
		t.Errorf("the account of the live picture (-want +got):\n%s", diff)
	}
	for resource, state := range want {
		if state == "Listed" && !slices.Contains([]string{"podattachments.fairlead.dev", "nodenetworks.fairlead.dev"}, resource) {
			want[resource] = "Forbidden"
		}
	}
	want["network-attachment-definitions.k8s.cni.cncf.io"] = "Forbidden"
	if diff := cmp.Diff(want, uiStates(t, c.Account(cluster.NodeAccount, "node-a"))); diff != "" {
		t.Errorf("the account of a node (-want +got):\n%s", diff)
	}
	c.Kubectl("delete", "-f", file)
}

// uiStates runs the live picture with the rights of a kubeconfig, and returns the state of
// each resource when all have one.
func uiStates(t *testing.T, kubeconfig string) map[string]string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	read, write := io.Pipe()
	ended := make(chan int, 1)
	var failure bytes.Buffer
	go func() {
		ended <- cli.New("fairlead", write, &failure).Run(ctx, []string{"ui", "--kubeconfig", kubeconfig}) //nolint:contextcheck // Run passes it on
		write.Close()
	}()
	defer func() {
		cancel()
		if code := <-ended; code != 0 {
			t.Errorf("fairlead ui ended with code %d: %s", code, failure.String())
		}
	}()
	line, err := bufio.NewReader(read).ReadString('\n')
	if err != nil {
		t.Fatalf("no address: %v", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, regexp.MustCompile(`^http://\S+/`).FindString(line)+"stream", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	out := map[string]string{}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<22)
	for event := ""; lines.Scan(); {
		if name, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			event = name
		}
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || event != "rows" {
			continue
		}
		var rows []struct {
			Kind, ID string
			Row      json.RawMessage
		}
		if err := json.Unmarshal([]byte(data), &rows); err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			var v struct{ State string }
			if r.Kind != "resource" {
				continue
			}
			if err := json.Unmarshal(r.Row, &v); err != nil {
				t.Fatal(err)
			}
			out[r.ID] = v.State
		}
		loading := false
		for _, state := range out {
			loading = loading || state == "Loading"
		}
		if !loading && len(out) > 0 {
			return out
		}
	}
	t.Fatalf("the stream ended with %v: %v", out, lines.Err())
	return nil
}

// TestUIHasNoService: nothing but a forwarded port reaches the page, which has no login.
func TestUIHasNoService(t *testing.T) {
	if testing.Short() {
		t.Skip("builds helm")
	}
	before := template(t)
	for name, o := range template(t, "--set", "ui.enabled=true") {
		if before[name] != nil {
			continue
		}
		kind, _, _ := strings.Cut(name, " ")
		switch {
		case !slices.Contains([]string{"Deployment", "ServiceAccount", "ClusterRole", "ClusterRoleBinding"}, kind):
			t.Errorf("the live picture brings a %s", name)
		case kind != "Deployment":
		case at(o.Object, "spec/template/spec/hostNetwork") != nil:
			t.Errorf("%s has the network of the node", name)
		default:
			want := []any{map[string]any{"name": "health", "containerPort": float64(8081)}}
			if diff := cmp.Diff(want, at(o.Object, "spec/template/spec/containers/0/ports")); diff != "" {
				t.Errorf("ports of %s (-want +got):\n%s", name, diff)
			}
		}
	}
}
