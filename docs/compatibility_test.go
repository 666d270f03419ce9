package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// required returns the versions in a go.mod by module, without their v.
func required(t *testing.T, path string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", path))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^(?:require)?\s+(\S+) v(\S+)`).FindAllStringSubmatch(string(text), -1) {
		out[m[1]] = m[2]
	}
	return out
}

// TestCompatibility compares the versions on the page of compatibility with the files that
// they come from. A row names its module and file.
func TestCompatibility(t *testing.T) {
	page := pages(t)["operator/compatibility.md"]
	row := regexp.MustCompile("(?m)^\\| ([^|]+) \\| ([0-9.]+)[^|]* \\| [^|]*\\(`([^`]+)` in `([^`]*go\\.mod)`\\)")
	var found []string
	for _, m := range row.FindAllStringSubmatch(page, -1) {
		part, version, module, file := m[1], m[2], m[3], m[4]
		found = append(found, module)
		if got := required(t, file)[module]; got != version {
			t.Errorf("%s: the page has %s; %s has %q of %s", part, version, file, got, module)
		}
	}
	if n := strings.Count(page, "go.mod`)"); n != len(found) {
		t.Errorf("%d rows name a go.mod, and %d of them were compared: %v", n, len(found), found)
	}
	for _, module := range []string{"k8s.io/kubernetes", "k8s.io/client-go", "github.com/containerd/containerd/v2"} {
		if !slices.Contains(found, module) {
			t.Errorf("the page has no row of %s", module)
		}
	}
	// The libraries of one release of Kubernetes are of one version.
	ours := required(t, "go.mod")
	for _, module := range []string{"k8s.io/api", "k8s.io/apimachinery", "k8s.io/apiextensions-apiserver", "k8s.io/kubelet"} {
		if ours[module] != ours["k8s.io/client-go"] {
			t.Errorf("%s has the version %q; k8s.io/client-go has %q", module, ours[module], ours["k8s.io/client-go"])
		}
	}
}

// TestCompatibilityOfNodes compares the version of nft with that in the image, and the oldest
// Kubernetes with that of the chart.
func TestCompatibilityOfNodes(t *testing.T) {
	page := pages(t)["operator/compatibility.md"]
	lock, err := os.ReadFile("../tools/packaging/images/debian.lock")
	if err != nil {
		t.Fatal(err)
	}
	nft := regexp.MustCompile(`(?m)^\S+ nftables (\d[^-\s]*)-`).FindAllStringSubmatch(string(lock), -1)
	if len(nft) != 2 {
		t.Fatalf("the lock has nftables %d times; must be once for each architecture", len(nft))
	}
	for _, m := range nft {
		if !strings.Contains(page, "| nft in the image | "+m[1]+" |") {
			t.Errorf("the image has nft %s; the page has another version", m[1])
		}
	}
	var chart struct{ KubeVersion string }
	text, err := os.ReadFile("../deploy/chart/Chart.yaml")
	if err == nil {
		err = yaml.Unmarshal(text, &chart)
	}
	if err != nil {
		t.Fatal(err)
	}
	oldest := regexp.MustCompile(`^>=(\d+\.\d+)\.`).FindStringSubmatch(chart.KubeVersion)
	if oldest == nil {
		t.Fatalf("kubeVersion of the chart is %q", chart.KubeVersion)
	}
	for name, text := range map[string]string{"compatibility.md": page, "install.md": pages(t)["operator/install.md"]} {
		if !strings.Contains(text, "Kubernetes "+oldest[1]+" ") {
			t.Errorf("%s does not name Kubernetes %s, the oldest of the chart", name, oldest[1])
		}
	}
}
