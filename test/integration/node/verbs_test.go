package node

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev/plug"
)

// oneNode returns a lab with one node, whose daemon serves, and pods on the node that have
// their records.
func oneNode(t *testing.T, pods ...string) (*lab, *labNode, []*labPod) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
	l := newLab(t)
	n := l.node(t, 0)
	n.start(t)
	n.awaitConflist(t)
	var made []*labPod
	for i, name := range pods {
		p := n.pod(t, name)
		l.attachment(t, n, p, fmt.Sprintf("10.244.1.%d/32", 5+i), fmt.Sprintf("fd00:10:244:1::%d/128", 5+i))
		made = append(made, p)
	}
	return l, n, made
}

// inVersion sets the CNI version and further fields of the configuration.
func inVersion(version string, fields map[string]any) func(config map[string]any) {
	return func(config map[string]any) {
		config["cniVersion"] = version
		maps.Copy(config, fields)
	}
}

// The plugin and the daemon answer every verb in every version of CNI. A verb that the version
// does not have is refused with code 1.
func TestVerbsInEveryVersion(t *testing.T) {
	l, n, pods := oneNode(t, "v031", "v040", "v100", "v110")
	valid := make([]map[string]string, len(pods))
	for i, p := range pods {
		valid[i] = map[string]string{"containerID": p.containerID, "ifname": "eth0"}
	}
	for i, version := range cniproto.Versions {
		p := pods[i]
		t.Run(version, func(t *testing.T) {
			netns := p.netns.Path()
			added := n.call("ADD", p, netns, inVersion(version, nil))
			added.wantOK(t, "ADD")
			var result struct {
				CNIVersion string
				IPs        []struct{ Address string }
			}
			if err := json.Unmarshal(added.stdout, &result); err != nil || result.CNIVersion != version || len(result.IPs) != 2 || result.IPs[0].Address != p.addresses[0] {
				t.Errorf("ADD answered %s, %v", added.stdout, err)
			}
			again := n.call("ADD", p, netns, inVersion(version, nil))
			again.wantOK(t, "ADD again")
			if diff := cmp.Diff(string(added.stdout), string(again.stdout)); diff != "" {
				t.Errorf("ADD again answered something else:\n%s", diff)
			}

			check := n.call("CHECK", p, netns, inVersion(version, map[string]any{"prevResult": json.RawMessage(added.stdout)}))
			status := n.call("STATUS", p, "", inVersion(version, nil))
			gc := n.call("GC", p, "", inVersion(version, map[string]any{"cni.dev/valid-attachments": valid}))
			if version < "0.4.0" {
				check.wantError(t, 1, "cniVersion", version, "CHECK")
			} else {
				check.wantOK(t, "CHECK")
				n.call("CHECK", p, netns, inVersion(version, nil)).wantError(t, 7, "prevResult", "missing")
			}
			if version < "1.1.0" {
				status.wantError(t, 1, "cniVersion", version, "STATUS")
				gc.wantError(t, 1, "cniVersion", version, "GC")
			} else {
				status.wantOK(t, "STATUS")
				gc.wantOK(t, "GC")
			}
			asked := n.call("VERSION", p, "", inVersion(version, nil))
			asked.wantOK(t, "VERSION")
			if want := `{"cniVersion":"` + version + `","supportedVersions":["0.3.1","0.4.0","1.0.0","1.1.0"]}`; string(asked.stdout) != want {
				t.Errorf("VERSION answered %s", asked.stdout)
			}
		})
	}
	// GC has removed no sandbox, also if the runtime lists none. Now the first two sandboxes end
	// without a DEL, and GC still lists the first.
	n.call("GC", pods[0], "", inVersion("1.1.0", map[string]any{"cni.dev/valid-attachments": nil})).wantOK(t, "GC of none")
	for _, p := range pods {
		l.wantState(t, p, v1alpha1.SandboxAttached, p.containerID)
	}
	for _, p := range pods[:2] {
		if err := p.netns.Close(); err != nil {
			t.Fatal(err)
		}
	}
	n.call("GC", pods[0], "", inVersion("1.1.0", map[string]any{"cni.dev/valid-attachments": valid[:1]})).wantOK(t, "GC of one that is gone")
	l.cluster.Eventually(t, "the record of one sandbox to go", func(context.Context) error {
		for i, p := range pods {
			_, err := os.Stat(filepath.Join(n.dir, "state", "attachments", p.containerID+".json"))
			if there := err == nil; there != (i != 1) {
				return fmt.Errorf("the record of %s is there: %v", p.name, there)
			}
		}
		return nil
	})
	for _, p := range pods[2:] {
		if !slices.Contains(n.state(t).Links, plug.RoutedName(p.containerID, "eth0")) {
			t.Errorf("%s still runs and was unplugged", p.name)
		}
	}
	for _, p := range pods {
		n.call("DEL", p, "", inVersion("0.3.1", nil)).wantOK(t, "DEL")
	}
}

// Every kind of bad input is answered with its error code and a message that names the bad
// value, and changes nothing.
func TestBadInputChangesNothing(t *testing.T) {
	_, n, pods := oneNode(t, "p")
	p := pods[0]
	at := func(fields string) []byte {
		return []byte(`{` + fields + `,"socket":"` + filepath.Join(n.dir, "state", "cni.sock") + `"}`)
	}
	config := func(fields string) []byte {
		return at(`"cniVersion":"1.1.0","name":"fairlead","type":"fairlead"` + fields)
	}
	good := map[string]string{
		"CNI_CONTAINERID": p.containerID, "CNI_NETNS": p.netns.Path(), "CNI_IFNAME": "eth0",
		"CNI_ARGS": "K8S_POD_NAMESPACE=" + n.lab.cluster.Namespace + ";K8S_POD_NAME=p;K8S_POD_UID=" + string(p.uid),
	}
	before := n.state(t)
	for _, tc := range []struct {
		name, verb string
		env        map[string]string
		stdin      []byte
		code       int
		words      []string
	}{
		{name: "no verb", code: 4, words: []string{"CNI_COMMAND", "missing"}},
		{name: "an unknown verb", verb: "FROB", code: 4, words: []string{`CNI_COMMAND: "FROB"`}},
		{name: "no container ID", verb: "ADD", env: map[string]string{"CNI_CONTAINERID": ""}, code: 4, words: []string{"CNI_CONTAINERID: missing"}},
		{name: "a container ID with a slash", verb: "DEL", env: map[string]string{"CNI_CONTAINERID": "../x"}, code: 4, words: []string{`CNI_CONTAINERID: "../x"`}},
		{name: "no interface name", verb: "ADD", env: map[string]string{"CNI_IFNAME": ""}, code: 4, words: []string{"CNI_IFNAME: missing"}},
		{name: "an interface name that is too long", verb: "ADD", env: map[string]string{"CNI_IFNAME": "abcdefghijklmnop"}, code: 4, words: []string{"CNI_IFNAME", "15"}},
		{name: "no namespace", verb: "ADD", env: map[string]string{"CNI_NETNS": ""}, code: 4, words: []string{"CNI_NETNS: missing"}},
		{name: "a namespace that is none", verb: "ADD", env: map[string]string{"CNI_NETNS": n.config}, code: 4, words: []string{"CNI_NETNS", n.config}},
		{name: "the host's namespace", verb: "ADD", env: map[string]string{"CNI_NETNS": fmt.Sprintf("/proc/%d/ns/net", n.daemon.Process.Pid)}, code: 4, words: []string{"CNI_NETNS"}},
		{name: "no pod", verb: "ADD", env: map[string]string{"CNI_ARGS": "IgnoreUnknown=1"}, code: 4, words: []string{"CNI_ARGS", "K8S_POD_NAME"}},
		{name: "no configuration", verb: "ADD", stdin: []byte{}, code: 6, words: []string{"network configuration: empty"}},
		{name: "half a configuration", verb: "ADD", stdin: config("")[:40], code: 6, words: []string{"network configuration", "before its JSON is complete"}},
		{name: "a configuration that is no object", verb: "ADD", stdin: []byte(`[]`), code: 6, words: []string{"must be a JSON object"}},
		{name: "a version of the wrong kind", verb: "ADD", stdin: at(`"cniVersion":1`), code: 6, words: []string{"cniVersion", "string"}},
		{name: "an old version", verb: "ADD", stdin: at(`"cniVersion":"0.2.0"`), code: 1, words: []string{`cniVersion: "0.2.0"`, "1.1.0"}},
		{name: "no socket", verb: "ADD", stdin: []byte(`{"cniVersion":"1.1.0","name":"n"}`), code: 7, words: []string{"socket: missing"}},
		{name: "no name", verb: "ADD", stdin: at(`"cniVersion":"1.1.0"`), code: 7, words: []string{`name: ""`}},
		{name: "a socket that is no path", verb: "ADD", stdin: []byte(`{"cniVersion":"1.1.0","name":"n","socket":"x"}`), code: 7, words: []string{`socket: "x"`}},
		{name: "too much", verb: "ADD", stdin: config(`,"x":"` + strings.Repeat("y", cniproto.MaxRequest) + `"`), code: 6, words: []string{"larger than"}},
		{name: "CHECK without a result", verb: "CHECK", code: 7, words: []string{"prevResult: missing"}},
		{name: "CHECK with half a result", verb: "CHECK", stdin: config(`,"prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.300/8"}]}`), code: 6, words: []string{"prevResult", "10.0.0.300/8"}},
		{name: "CHECK of what is not plugged", verb: "CHECK", stdin: config(`,"prevResult":{"cniVersion":"1.1.0"}`), code: 3, words: []string{p.containerID}},
		{name: "GC with a list that is none", verb: "GC", stdin: config(`,"cni.dev/valid-attachments":{}`), code: 7, words: []string{"cni.dev/valid-attachments"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			env := map[string]string{"CNI_COMMAND": tc.verb}
			for _, from := range []map[string]string{good, tc.env} {
				maps.Copy(env, from)
			}
			if tc.stdin == nil {
				tc.stdin = config("")
			}
			n.exec(env, tc.stdin).wantError(t, tc.code, tc.words...)
		})
	}
	if diff := cmp.Diff(before, n.state(t)); diff != "" {
		t.Errorf("bad input changed the host:\n%s", diff)
	}
	for _, dir := range []string{"attachments", "del"} {
		entries, err := os.ReadDir(filepath.Join(n.dir, "state", dir))
		if err != nil && !os.IsNotExist(err) || len(entries) > 0 {
			t.Errorf("%s holds %v, %v", dir, entries, err)
		}
	}
}

// CHECK reports every change that another program made in the kernel. The daemon repairs the
// host's side soon after.
func TestCheckSeesTheKernel(t *testing.T) {
	l, n, pods := oneNode(t, "p")
	p := pods[0]
	added := n.cni("ADD", p, p.netns.Path())
	added.wantOK(t, "ADD")
	check := func() pluginAnswer { return n.call("CHECK", p, p.netns.Path(), prevResult(added)) }
	check().wantOK(t, "CHECK right after ADD")

	inside, err := p.netns.Netlink()
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	eth0, err := inside.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	setMTU := func(mtu int) {
		t.Helper()
		if err := inside.LinkSetMTU(eth0, mtu); err != nil {
			t.Fatal(err)
		}
	}
	// A later plugin may have set a smaller MTU, so it is reported in the log only.
	setMTU(1300)
	check().wantOK(t, "CHECK with a smaller MTU")
	n.wantLogged(t, fmt.Sprintf("interface eth0 has an MTU of 1300 bytes, less than the network's %d", eth0.Attrs().MTU))

	setMTU(eth0.Attrs().MTU + 100)
	routes, err := inside.RouteList(eth0, syscall.AF_INET)
	if err != nil || len(routes) == 0 {
		t.Fatalf("routes %v, %v", routes, err)
	}
	for _, r := range routes {
		if err := inside.RouteDel(&r); err != nil {
			t.Fatal(err)
		}
	}
	tooLarge := fmt.Sprintf("interface eth0 has an MTU of %d bytes, not %d", eth0.Attrs().MTU+100, eth0.Attrs().MTU)
	check().wantError(t, 110, "2 differences", tooLarge, "interface eth0 lacks the route to 0.0.0.0/0 via 169.254.1.1")

	setMTU(eth0.Attrs().MTU)
	slices.Reverse(routes) // the default route needs the route to its gateway first
	for _, r := range routes {
		if err := inside.RouteAdd(&r); err != nil {
			t.Fatal(err)
		}
	}
	check().wantOK(t, "CHECK after the restore")

	host, err := n.Netlink()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	end, err := host.LinkByName(plug.RoutedName(p.containerID, "eth0"))
	if err != nil {
		t.Fatal(err)
	}
	if err := host.LinkSetDown(end); err != nil {
		t.Fatal(err)
	}
	check().wantError(t, 110, "3 differences", end.Attrs().Name, "is down")
	l.cluster.Eventually(t, "the host's side to be in order", func(context.Context) error { return check().err })
}
