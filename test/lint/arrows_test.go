package lint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// arrow is a rule about imports. A package in a list stands for itself and all below it; with a
// $ at its end for itself alone. Packages of this module are written without its path. Lists are
// separated by spaces.
type arrow struct {
	name string
	// from are the packages of the rule, all if empty; but are those that it leaves out.
	from, but string
	// never are the packages that they may not import.
	never string
	// only, if it is not empty, are the packages that they may import beside the standard library.
	only string
	// product is true if the files of tests may import all the same.
	product bool
	why     string
}

// noIO are the packages of the standard library that do I/O.
const noIO = "database/sql log net$ net/http net/rpc os syscall"

// The arrows between packages, and the one home of each library.
var arrows = []arrow{
	// Foreign libraries.
	{name: "kernel", but: "internal/netdev test", never: "github.com/vishvananda/netlink github.com/vishvananda/netns", why: "only internal/netdev talks to the kernel"},
	{name: "packet-filter", but: "internal/nft test", never: "sigs.k8s.io/knftables", why: "only internal/nft writes packet filters"},
	{name: "foreign-filter", but: "internal/netdev/host test", never: "github.com/google/nftables", why: "only internal/netdev/host reads the filters of others"},
	{name: "tracing", but: "internal/tracing", never: "go.opentelemetry.io", why: "only internal/tracing makes spans"},
	{name: "wire-forms", but: "internal/slim internal/node/devices", never: "github.com/go-json-experiment google.golang.org/protobuf", why: "only internal/slim has a reason to read objects otherwise than client-go"},
	{name: "kubelet", but: "internal/cniproto cmd/fairlead-cni", never: "google.golang.org/grpc k8s.io/kubelet", product: true, why: "they need a sixth of the node daemon's memory: internal/node/devices asks the kubelet without them"},
	{name: "openstack", but: "internal/openstack/cloud test/openstack", never: "github.com/gophercloud", why: "only internal/openstack/cloud talks to OpenStack"},
	{name: "ebpf", but: "test/openstack/vlanshim", never: "github.com/cilium/ebpf", why: "only the stand-in for VLAN devices has programs in the kernel"},
	{name: "delegate", but: "internal/node/delegate test", never: "github.com/containernetworking/cni/libcni github.com/containernetworking/cni/pkg/invoke", product: true, why: "only internal/node/delegate executes plugins"},
	{name: "exec", from: "api cmd internal", but: "internal/node/delegate", never: "os/exec", product: true, why: "only internal/node/delegate executes programs"},

	// The whole tree.
	{name: "upward", from: "api internal", never: "cmd", why: "arrows point down"},
	{name: "api-leaf", from: "api", never: "internal", why: "the API is types and nothing else"},
	{name: "leaves", from: "internal/config internal/fault internal/keyed internal/run internal/tracing", never: "api internal", product: true, why: "what all programs share knows none of them"},
	{name: "test-only", from: "api cmd internal", never: "test", product: true, why: "product code does not link what tests share"},
	{name: "harness", from: "test/harness", only: "golang.org/x/sys", product: true, why: "it starts any program and knows none"},

	// The programs.
	{name: "main-controller", from: "cmd/fairlead-controller", never: "internal/cli internal/cniproto internal/netdev internal/nft internal/node", why: "a program is its stage and no other"},
	{name: "main-node", from: "cmd/fairlead-node", never: "internal/cli internal/controller internal/driver internal/gc internal/ipam internal/migrate internal/slim", why: "a program is its stage and no other"},
	{name: "cli", from: "cmd/fairlead internal/cli", never: "internal/cniproto internal/controller internal/driver internal/gc internal/netdev internal/nft internal/node internal/slim", product: true, why: "the CLI needs a kubeconfig and what is in the cluster, no stage"},
	{name: "cni-thin", from: "cmd/fairlead-cni$ internal/cniproto$", only: "internal/cniproto$", product: true, why: "the plugin's start is waited for"},
	{name: "cni-start", from: "cmd/fairlead-cni$ internal/cniproto$", never: "net$ net/http net/rpc", product: true, why: "the plugin's start is waited for: it connects by system calls and speaks cniproto"},

	// The controller.
	{name: "stages-controller", from: "internal/controller internal/gc", never: "internal/cniproto internal/netdev internal/node", why: "the stages meet only in the PodAttachment"},
	{name: "controller-plain", from: "internal/controller internal/gc", never: "internal/ipam internal/nad internal/source internal/whereabouts", product: true, why: "what one driver alone understands it brings as driver.Parts, and a source is a function that main hands over"},
	{name: "drivers", but: "cmd/fairlead-controller internal/driver test", never: "internal/driver/native internal/driver/neutron", why: "only the controller's main lists the drivers"},
	{name: "drivers-down", from: "internal/driver", never: "internal/cniproto internal/controller internal/gc internal/netdev internal/node", why: "a driver knows only its contract, and bindings are data"},
	{name: "source-down", from: "internal/source", never: "internal/cniproto internal/controller internal/gc internal/netdev internal/node", why: "a source reads what pods ask for"},

	// The node.
	{name: "stages-node", from: "internal/node internal/netdev internal/nft", never: "internal/controller internal/driver internal/gc internal/ipam", why: "the stages meet only in the PodAttachment, and addresses are chosen in the controller"},
	{name: "cniproto-server", but: "cmd/fairlead-node internal/node internal/cniproto/server test", never: "internal/cniproto/server", product: true, why: "only the node daemon serves the socket"},
	{name: "plugin-alone", from: "internal/node/plugin internal/node/locks", never: "api internal/netdev internal/node$", why: "the manager knows plugins by their interface"},
	{name: "netdev-kube", from: "internal/netdev", never: "k8s.io/client-go sigs.k8s.io/controller-runtime", why: "netdev applies what it is given and asks no server"},
	{name: "netdev-link", from: "internal/netdev/link", never: "internal", product: true, why: "sockets do not know what they are used for"},
	{name: "netdev-plug", from: "internal/netdev/plug internal/netdev/kinds internal/netdev/echo", never: "internal/netdev/host internal/node", why: "the host's network is built on what plugs, and what plugs does not know who asked"},

	// Pure packages.
	{name: "proof-pure", from: "internal/controller/proof", never: noIO, only: "api k8s.io/api k8s.io/apimachinery", product: true, why: "pure functions"},
	{name: "pod-pure", from: "internal/pod internal/nad internal/whereabouts", never: noIO, only: "api internal/whereabouts$ k8s.io/api k8s.io/apimachinery k8s.io/utils/net$", product: true, why: "pure functions; addresses are net/netip"},
	{name: "ipam-pure", from: "internal/ipam$", never: noIO, only: "internal/ipam$", product: true, why: "pure functions"},
	{name: "ipam-block", from: "internal/ipam/block", only: "api internal/fault internal/ipam internal/keyed github.com/go-logr/logr github.com/prometheus/client_golang golang.org/x/sync k8s.io/api k8s.io/apimachinery k8s.io/client-go k8s.io/klog/v2 k8s.io/utils sigs.k8s.io/controller-runtime", product: true, why: "the store knows the choice, the API types and Kubernetes' client"},
	{name: "migrate-pure", from: "internal/migrate$", only: "api internal/ipam internal/pod k8s.io/api k8s.io/apimachinery", product: true, why: "pure functions"},
	{name: "migrate-io", from: "internal/migrate$ internal/migrate/multus", never: noIO, product: true, why: "pure functions do no I/O"},
}

// imports are those of a package, in its files and in those of its tests.
type imports struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
}

// TestArrows compares the imports of all packages with the table.
func TestArrows(t *testing.T) {
	root := filepath.Join("..", "..")
	all := imported(t, root)
	for _, broken := range wrong(arrows, all) {
		t.Error(broken)
	}
	for _, gone := range unknown(arrows, all) {
		t.Error(gone)
	}
	for _, other := range []string{"test/kubelab", "tools/packaging"} {
		for _, broken := range wrong(arrows, imported(t, filepath.Join(root, other))) {
			t.Error(broken)
		}
	}
}

// imported returns the imports of the packages of the module in a folder.
func imported(t *testing.T, dir string) []imports {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", "./...")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
	var all []imports
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p imports
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// wrong returns a line for each import that an arrow forbids.
func wrong(arrows []arrow, all []imports) (lines []string) {
	for _, a := range arrows {
		for _, p := range all {
			of := p.Imports
			if !a.product {
				of = slices.Concat(p.Imports, p.TestImports, p.XTestImports)
			}
			if a.from != "" && !in(a.from, p.ImportPath) || in(a.but, p.ImportPath) {
				continue
			}
			slices.Sort(of)
			for _, path := range slices.Compact(of) {
				first, _, _ := strings.Cut(path, "/")
				if in(a.never, path) || a.only != "" && strings.Contains(first, ".") && !in(a.only, path) {
					lines = append(lines, fmt.Sprintf("%s imports %s: the arrow %q of test/lint/arrows_test.go forbids it: %s", short(p.ImportPath), short(path), a.name, a.why))
				}
			}
		}
	}
	return lines
}

// unknown returns a line for each package of this module that an arrow names and that is not
// there.
func unknown(arrows []arrow, all []imports) (lines []string) {
	for _, a := range arrows {
		for one := range strings.FieldsSeq(a.from + " " + a.but + " " + a.never + " " + a.only) {
			if full(one) == one {
				continue // of another module
			}
			if !slices.ContainsFunc(all, func(p imports) bool { return in(one, p.ImportPath) }) {
				lines = append(lines, fmt.Sprintf("the arrow %q of test/lint/arrows_test.go names %s, which is no package: it was removed, or has another name now; change the arrow in the same commit", a.name, one))
			}
		}
	}
	return lines
}

// in reports whether a list has the package of an import path, or one above it.
func in(list, path string) bool {
	return slices.ContainsFunc(strings.Fields(list), func(one string) bool {
		one, alone := strings.CutSuffix(full(one), "$")
		return path == one || !alone && strings.HasPrefix(path, one+"/")
	})
}

// full returns the import path of a package in a list.
func full(one string) string {
	switch first, _, _ := strings.Cut(one, "/"); strings.TrimSuffix(first, "$") {
	case "api", "cmd", "docs", "internal", "test":
		return modulePath + "/" + one
	}
	return one
}

func short(path string) string { return strings.TrimPrefix(path, modulePath+"/") }

// madeUp are imports that break arrows, and some that break none. Each arrow is broken once.
var madeUp = []struct {
	from, imports string
	test          bool
	broken        string
}{
	{"internal/node/filter", "github.com/vishvananda/netlink", false, "kernel"},
	{"internal/node/filter", "github.com/vishvananda/netlink/nl github.com/vishvananda/netns", true, "kernel kernel"},
	{"internal/netdev/host", "github.com/vishvananda/netlink api/v1alpha1", false, ""},
	{"test/netlab", "github.com/vishvananda/netns os/exec internal/driver/native internal/cniproto/server", false, ""},
	{"internal/node/filter", "sigs.k8s.io/knftables github.com/google/nftables", false, "foreign-filter packet-filter"},
	{"internal/nft", "sigs.k8s.io/knftables internal/ipam", false, "stages-node"},
	{"internal/node", "go.opentelemetry.io/otel/sdk/trace", false, "tracing"},
	{"internal/tracing", "go.opentelemetry.io/otel", false, ""},
	{"internal/controller", "google.golang.org/protobuf/encoding/protowire", false, "wire-forms"},
	{"internal/slim", "google.golang.org/protobuf/encoding/protowire", false, ""},
	{"internal/node", "google.golang.org/grpc k8s.io/kubelet/pkg/apis/podresources/v1", false, "kubelet kubelet"},
	{"internal/node", "google.golang.org/grpc", true, ""},
	{"internal/driver/neutron", "github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports", false, "openstack"},
	{"internal/openstack/cloud", "github.com/gophercloud/gophercloud/v2", false, ""},
	{"test/openstack/lab", "github.com/cilium/ebpf/asm github.com/gophercloud/gophercloud/v2", false, "ebpf"},
	{"internal/node/answer", "github.com/containernetworking/cni/libcni os/exec", false, "delegate exec"},
	{"internal/node/answer", "github.com/containernetworking/cni/libcni os/exec", true, ""},
	{"internal/node/delegate", "github.com/containernetworking/cni/pkg/invoke os/exec", false, ""},
	{"internal/run", "cmd/fairlead internal/pod api/v1alpha1 os/signal", false, "leaves leaves upward"},
	{"internal/run", "internal/pod", true, ""},
	{"api/v1alpha1", "internal/driver k8s.io/apimachinery/pkg/types", false, "api-leaf"},
	{"internal/controller", "test/cluster test/nodetest", false, "test-only test-only"},
	{"internal/controller", "test/cluster", true, ""},
	{"internal/node", "test/nettest", false, "test-only"},
	{"test/harness", "os/exec golang.org/x/sys/unix api/v1alpha1", false, "harness"},
	{"cmd/fairlead-controller", "internal/driver/native internal/gc internal/node/report", false, "main-controller"},
	{"cmd/fairlead-node", "internal/driver/native internal/node", true, "drivers main-node"},
	{"internal/cli/status", "internal/node internal/ipam/audit internal/migrate", false, "cli"},
	{"cmd/fairlead", "internal/gc", false, "cli"},
	{"cmd/fairlead-cni", "io internal/cniproto internal/cniproto/server internal/run", false, "cni-thin cni-thin cniproto-server"},
	{"internal/cniproto", "fmt io/fs net net/http/httptrace net/netip", false, "cni-start cni-start"},
	{"internal/cniproto", "fmt net", true, ""},
	{"internal/gc", "internal/netdev/host internal/driver", true, "stages-controller"},
	{"internal/controller", "internal/ipam/block internal/source/npwg", false, "controller-plain controller-plain"},
	{"internal/driver/native", "internal/ipam/block internal/node", false, "drivers-down"},
	{"internal/source/npwg", "internal/controller internal/driver", false, "source-down"},
	{"internal/gc", "internal/cniproto/server", false, "cniproto-server stages-controller"},
	{"internal/node/locks", "internal/node internal/netdev/link internal/cniproto", false, "plugin-alone plugin-alone"},
	{"internal/netdev/host", "sigs.k8s.io/controller-runtime/pkg/client", true, "netdev-kube"},
	{"internal/netdev/link", "internal/netdev/plug api/v1alpha1", false, "netdev-link"},
	{"internal/netdev/plug/child", "internal/netdev/host internal/netdev/link", false, "netdev-plug"},
	{"internal/controller/proof", "time net/http api/v1alpha1 internal/driver", false, "proof-pure proof-pure"},
	{"internal/nad", "os net/netip internal/whereabouts k8s.io/utils/net k8s.io/client-go/kubernetes", false, "pod-pure pod-pure"},
	{"internal/ipam", "math/bits os/exec k8s.io/apimachinery/pkg/types", false, "exec ipam-pure ipam-pure"},
	{"internal/ipam/block", "context k8s.io/client-go/tools/cache k8s.io/apiserver/pkg/server internal/pod", false, "ipam-block ipam-block"},
	{"internal/migrate", "internal/ipam sigs.k8s.io/controller-runtime net", false, "migrate-io migrate-pure"},
	{"internal/migrate/apply", "sigs.k8s.io/controller-runtime os", false, ""},
}

// TestArrowsCanFail breaks each arrow.
func TestArrowsCanFail(t *testing.T) {
	hit := map[string]bool{}
	for _, tt := range madeUp {
		p := imports{ImportPath: full(tt.from)}
		for path := range strings.FieldsSeq(tt.imports) {
			if tt.test {
				p.TestImports = append(p.TestImports, full(path))
			} else {
				p.Imports = append(p.Imports, full(path))
			}
		}
		var got []string
		for _, line := range wrong(arrows, []imports{p}) {
			_, name, _ := strings.Cut(line, `the arrow "`)
			name, _, _ = strings.Cut(name, `"`)
			got = append(got, name)
			hit[name] = true
		}
		slices.Sort(got)
		if diff := cmp.Diff(tt.broken, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s, tests %v, imports %s (-want +got):\n%s", tt.from, tt.test, tt.imports, diff)
		}
	}
	names := map[string]bool{}
	for _, a := range arrows {
		if !hit[a.name] {
			t.Errorf("no import of the list breaks the arrow %q", a.name)
		}
		if names[a.name] || a.why == "" || a.never+a.only == "" {
			t.Errorf("the arrow %q stands twice, or lacks its imports or its reason", a.name)
		}
		names[a.name] = true
	}
	got := unknown([]arrow{{name: "old", from: "internal/gone", never: "net$"}}, []imports{{ImportPath: full("internal/run")}})
	if len(got) != 1 || !strings.Contains(got[0], `the arrow "old" of test/lint/arrows_test.go names internal/gone, which is no package`) {
		t.Errorf("an arrow of a package that is gone: %q", got)
	}
}
