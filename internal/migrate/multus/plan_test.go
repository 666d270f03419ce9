package multus

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/config"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/golden"
)

func TestParseConfig(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       Config
		err        string
	}{
		{
			name: "daemon", text: `{"chrootDir":"/hostroot","cniVersion":"0.3.1","multusConfigFile":"auto","socketDir":"/host/run/multus/","namespaceIsolation":true,"globalNamespaces":"a, b,a"}`,
			want: Config{ConfigFile: "auto", NamespaceIsolation: true, GlobalNamespaces: "a, b,a"},
		},
		{
			name: "plugin", text: `{"name":"multus-cni-network","type":"multus","clusterNetwork":"calico","defaultNetworks":["a"],"readinessindicatorfile":"/run/x"}`,
			want: Config{ClusterNetwork: "calico", DefaultNetworks: []string{"a"}, ReadinessIndicatorFile: "/run/x"},
		},
		{name: "list", text: `{"name":"n","plugins":[{"type":"other"},{"type":"multus-shim","clusterNetwork":"fairlead"}]}`, want: Config{ClusterNetwork: "fairlead"}},
		{name: "of another plugin", text: `{"type":"calico"}`, err: `type "calico": must be that of Multus`},
		{name: "no JSON", text: `multus`, err: "must be a JSON object"},
		{name: "wrong type", text: `{"type":"multus","defaultNetworks":"a"}`, err: "defaultNetworks"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseConfig([]byte(tt.text))
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want %q", err, tt.err)
				}
				return
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
				t.Errorf("error %v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestParseArgs(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want Config
		ok   bool
	}{
		{args: nil, want: Config{ConfigFile: "auto"}, ok: true},
		{args: []string{"--multus-conf-file=auto", "--namespace-isolation=true", "--global-namespaces", "a,b"}, want: Config{ConfigFile: "auto", NamespaceIsolation: true, GlobalNamespaces: "a,b"}, ok: true},
		{args: []string{"--namespace-isolation", "--readiness-indicator-file=/run/x"}, want: Config{ConfigFile: "auto", NamespaceIsolation: true, ReadinessIndicatorFile: "/run/x"}, ok: true},
		{args: []string{"--multus-conf-file=/tmp/multus-conf/70-multus.conf"}},
	} {
		got, ok := ParseArgs(tt.args)
		if diff := cmp.Diff(tt.want, got); diff != "" || ok != tt.ok {
			t.Errorf("%q: ok %t (-want +got):\n%s", tt.args, ok, diff)
		}
	}
}

func TestSettings(t *testing.T) {
	file := []byte(`{"type":"multus"}`)
	cluster := func(name string) Config { return Config{ClusterNetwork: name} }
	for _, tt := range []struct {
		name   string
		config Config
		want   map[string]bool // served, by name
	}{
		{"auto", Config{}, map[string]bool{"clusterNetwork": true}},
		{"of Fairlead by file", cluster("/etc/cni/net.d/10-fairlead.conflist"), map[string]bool{"clusterNetwork": true}},
		{"of Fairlead by network", cluster("main"), map[string]bool{"clusterNetwork": true}},
		{"of another plugin", cluster("calico"), map[string]bool{"clusterNetwork": false}},
		{"whose name resembles", cluster("not-fairlead"), map[string]bool{"clusterNetwork": false}},
		{"delegate of Fairlead", Config{Delegates: raws(`{"name":"fairlead","plugins":[{"type":"fairlead"}]}`)}, map[string]bool{"delegates": true}},
		{"delegate of another plugin", Config{Delegates: raws(`{"type":"flannel"}`)}, map[string]bool{"delegates": false}},
		{"two delegates", Config{Delegates: raws(`{"type":"fairlead"}`, string(file))}, map[string]bool{"delegates": false}},
		{
			"networks of all pods",
			Config{DefaultNetworks: []string{"a", "b"}, SystemNamespaces: []string{"x"}},
			map[string]bool{"clusterNetwork": true, "defaultNetworks": false, "systemNamespaces": true},
		},
		{"isolation", Config{NamespaceIsolation: true, GlobalNamespaces: "a"}, map[string]bool{"clusterNetwork": true, "namespaceIsolation": true}},
		{
			"the rest",
			Config{GlobalNamespaces: "a", MultusNamespace: "m", ReadinessIndicatorFile: "f", RetryDeleteOnError: true, AuxiliaryCNIChainName: "c"},
			map[string]bool{"clusterNetwork": true, "globalNamespaces": true, "multusNamespace": false, "readinessindicatorfile": true, "retryDeleteOnError": true, "auxiliaryCNIChainName": false},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := State{Config: &tt.config, Networks: []Definition{{Namespace: "kube-system", Name: "main", Config: `{"cniVersion":"1.0.0","type":"fairlead"}`}}}
			got := map[string]bool{}
			for _, setting := range s.settings() {
				got[setting.Name] = setting.Served
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("served (-want +got):\n%s", diff)
			}
		})
	}
}

func raws(texts ...string) (out []json.RawMessage) {
	for _, text := range texts {
		out = append(out, json.RawMessage(text))
	}
	return out
}

const noFile = "spec.config: empty: its configuration would be a file on the nodes, which Fairlead does not read: write the configuration into spec.config"

func TestJudge(t *testing.T) {
	for _, tt := range []struct {
		name, config string
		driver       string
		resource     string
		want         Network
	}{
		{
			name: "in process", config: `{"cniVersion":"1.0.0","type":"macvlan","master":"eth1","ipam":{"type":"fairlead-ipam"}}`,
			want: Network{Type: "macvlan", IPAM: "fairlead-ipam", Served: InProcess},
		},
		{
			name: "in process with a chain", config: `{"cniVersion":"1.0.0","plugins":[{"type":"bridge","bridge":"br1","ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24"}]}},{"type":"portmap"},{"type":"tuning"}]}`,
			want: Network{Type: "bridge", IPAM: "static", Served: InProcess, Plugins: []string{"portmap", "tuning"}, Leaves: []string{"portmap"}},
		},
		{
			name: "executed", config: `{"cniVersion":"1.0.0","type":"bridge","bridge":"br1","ipMasq":true,"ipam":{"type":"host-local","subnet":"10.1.0.0/24"}}`,
			want: Network{Type: "bridge", IPAM: "host-local", Served: Executed, Plugins: []string{"bridge", "host-local"}, Leaves: []string{"bridge", "host-local"}},
		},
		{
			name: "refused", config: `{"cniVersion":"1.0.0","type":"macvlan","master":"eth1","linkInContainer":true}`,
			want: Network{Type: "macvlan", Served: No, Reason: "network configuration: linkInContainer: true: is not served for macvlan: remove it: the master is a link of the node"},
		},
		{name: "no JSON", config: "{", want: Network{Served: No, Reason: "network configuration: must be a JSON object as in the CNI specification: unexpected end of JSON input"}},
		{name: "file of the nodes", want: Network{Served: No, Reason: noFile}},
		{name: "driver", driver: "neutron", want: Network{Served: Driver}},
		{name: "devices", resource: "intel.com/sriov", config: `{"cniVersion":"1.0.0","type":"host-device"}`, want: Network{Type: "host-device", Served: InProcess}},
		{
			name: "devices of a plugin", resource: "intel.com/sriov", config: `{"cniVersion":"1.0.0","type":"sriov","vlan":100}`,
			want: Network{Type: "sriov", Served: InProcess, Leaves: []string{"sriov"}},
		},
		{
			name: "one address for all", config: `{"cniVersion":"1.0.0","type":"macvlan","master":"eth1","ipam":{"type":"whereabouts","range":"10.1.0.0/24","addresses":[{"address":"10.2.0.1/24"}]}}`,
			want: Network{
				Type: "macvlan", IPAM: "whereabouts", Served: No,
				Remarks: []string{`addresses: given to every interface of the network, and recorded nowhere, as whereabouts does; ask for an address with the pod's annotation instead`},
				Reason:  "ipam.addresses: 10.2.0.1/24: is not served where Fairlead attaches the pods: remove it, or use ipam.type static for a network whose interfaces have the same address",
			},
		},
		{
			name: "link of the default route", config: `{"cniVersion":"1.0.0","type":"macvlan","ipam":{"type":"dhcp"}}`,
			want: Network{Type: "macvlan", IPAM: "dhcp", Served: No, Leaves: []string{"dhcp"}, Reason: "master: not set: the plugin would use the link of the node's default route: name the link"},
		},
		{
			name: "text for a terminal", config: `{"cniVersion":"1.0.0","type":"macvlan","master":"eth1","ipam":{"type":"\u001b[2J"}}`,
			want: Network{
				IPAM: "?[2J", Served: No, Leaves: []string{"?[2J"},
				Reason: `network configuration: ipam.type: "\x1b[2J": must be the name of a plugin: 1 to 63 of a-z, A-Z, 0-9, '_', '.', '-', beginning with a letter or digit`,
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := classify(Definition{Namespace: "shop", Name: "n", Config: tt.config, Driver: tt.driver, Resource: tt.resource}, nil)
			tt.want.Name = "shop/n"
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(Network{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// podOn returns a running pod of namespace shop on node-1.
func podOn(name, networks string, with ...func(*corev1.Pod)) corev1.Pod {
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Annotations: map[string]string{pod.AnnotationNetworks: networks}},
		Spec:       corev1.PodSpec{NodeName: "node-1"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.244.0.5"}}},
	}
	for _, change := range with {
		change(&p)
	}
	return p
}

func TestProblems(t *testing.T) {
	s := State{
		Networks: []Definition{
			{Namespace: "shop", Name: "plain", Config: `{"cniVersion":"1.0.0","type":"ipvlan","master":"eth1"}`},
			{Namespace: "shop", Name: "file"},
			{Namespace: "kube-system", Name: "main", Config: `{"cniVersion":"1.0.0","type":"macvlan","master":"eth1"}`},
		},
		Pods: []corev1.Pod{
			podOn("b", `[{"name":"plain","mac":"02:00:00:00:00:01"}]`),
			podOn("a", `[{"name":"plain","mac":"02:00:00:00:00:02"}]`),
			podOn("fine", "plain"),
			podOn("file", "file"),
			podOn("claim", `[{"name":"plain","ipam-claim-reference":"c"}]`),
			podOn("gone", "nowhere"),
			podOn("bad", "[{"),
			podOn("finished", "nowhere", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
			podOn("host", "nowhere", func(p *corev1.Pod) { p.Spec.HostNetwork = true }),
			podOn("chosen", "", func(p *corev1.Pod) {
				p.Annotations[pod.AnnotationDefaultNetwork] = `[{"name":"main","ips":["10.0.0.1"]}]`
			}),
		},
	}
	plan, err := Make(s)
	if err != nil {
		t.Fatal(err)
	}
	ignored := func(wish string) string {
		return "the pod requests " + wish + ", and no plugin of the network has this capability: remove it from the annotation, or declare it in the plugin's \"capabilities\""
	}
	want := []Problem{
		{Text: `annotation k8s.v1.cni.cncf.io/networks: must be a list as [{"name":"net-a"}]: unexpected end of JSON input`, Pods: []string{"shop/bad"}},
		{Network: "kube-system/main", Text: ignored("ips"), Pods: []string{"shop/chosen"}},
		{Network: "shop/nowhere", Text: "there is no such NetworkAttachmentDefinition", Pods: []string{"shop/gone"}},
		{Network: "shop/plain", Text: `ipam-claim-reference: "c": the network's addresses are not Fairlead's (ipam.type ""): leave it out, or use fairlead-ipam`, Pods: []string{"shop/claim"}},
		{Network: "shop/plain", Text: ignored("mac"), Pods: []string{"shop/a", "shop/b"}},
	}
	if diff := cmp.Diff(want, plan.Problems); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	users := map[string]int{}
	for _, n := range plan.Networks {
		users[n.Name] = n.Pods
	}
	if diff := cmp.Diff(map[string]int{"kube-system/main": 1, "shop/file": 1, "shop/plain": 4}, users); diff != "" {
		t.Errorf("pods by network (-want +got):\n%s", diff)
	}
}

// The configuration opens to each namespace what its networks name and no more, and the
// controller accepts it.
func TestConfiguration(t *testing.T) {
	macvlan := `{"cniVersion":"1.0.0","type":"macvlan","master":"eth1"}`
	s := State{
		Own:    "fairlead-system",
		Config: &Config{NamespaceIsolation: true},
		Networks: []Definition{
			{Namespace: "a", Name: "one", Config: macvlan},
			{Namespace: "b", Name: "one", Config: macvlan},
			{Namespace: "b", Name: "again", Config: macvlan},
			{Namespace: "c", Name: "one", Config: `{"cniVersion":"1.0.0","type":"bridge","bridge":"br*[?\\","ipam":{"type":"host-local","subnet":"10.1.0.0/24"}}`},
			{Namespace: "d", Name: "one", Config: `{"cniVersion":"1.0.0","type":"bridge","bridge":"br1","isGateway":true,"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"}]}}`},
			{Namespace: "e", Name: "refused", Config: `{"cniVersion":"1.0.0","type":"macvlan","master":"eth9","linkInContainer":true}`},
			{Namespace: "fairlead-system", Name: "one", Config: `{"cniVersion":"1.0.0","type":"macvlan","master":"eth7"}`},
		},
	}
	plan, err := Make(s)
	if err != nil {
		t.Fatal(err)
	}
	c := config.DefaultController()
	if err := yaml.UnmarshalStrict([]byte(plan.Configuration), &c); err != nil {
		t.Fatal(err)
	}
	if err := c.Validate([]string{config.DriverNative}); err != nil {
		t.Fatal(err)
	}
	only := func(namespace string) metav1.LabelSelector {
		return metav1.LabelSelector{MatchLabels: map[string]string{labelName: namespace}}
	}
	want := config.Networks{
		AttachedBy: config.AttachedByMultus, Isolated: true, SharedNamespaces: []string{"default"},
		Open: []config.Opening{
			{NamespaceSelector: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: labelName, Operator: "In", Values: []string{"a", "b"}}}}, Parents: []string{"eth1"}},
			{NamespaceSelector: only("c"), Bridges: []string{`br\*\[\?\\`}, Plugins: []string{"bridge", "host-local"}},
			{NamespaceSelector: only("d"), Bridges: []string{"br1"}, Addresses: []string{"10.1.0.0/24"}},
		},
	}
	if diff := cmp.Diff(want, c.Networks); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{config.SourceNPWG}, c.MultiVIFSources); diff != "" {
		t.Errorf("sources (-want +got):\n%s", diff)
	}
}

// The pools in place of host-local are valid, and withhold the addresses of running pods.
func TestPools(t *testing.T) {
	on := func(network, ips string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Annotations[pod.AnnotationNetworkStatus] = `[{"name":"` + network + `","interface":"net1","ips":[` + ips + `]}]`
		}
	}
	nad := func(name, ipam string) Definition {
		return Definition{Namespace: "shop", Name: name, Config: `{"cniVersion":"1.0.0","type":"bridge","bridge":"br1","ipam":{"type":"host-local",` + ipam + `}}`}
	}
	s := State{
		Networks: []Definition{
			nad("flat", `"subnet":"10.1.0.7/24"`),
			nad("both", `"ranges":[[{"subnet":"10.2.0.0/24","rangeStart":"10.2.0.10","gateway":"10.2.0.254"},{"subnet":"10.3.0.0/24","rangeEnd":"10.3.0.9"}],[{"subnet":"fd00::/64"}]]`),
			nad("twice", `"ranges":[[{"subnet":"10.4.0.0/24"}],[{"subnet":"10.5.0.0/24"}]]`),
			nad("none", `"dataDir":"/x"`),
			nad("bad", `"subnet":"10.0.0.0/\n33"`),
			nad("same", `"subnet":"10.1.0.0/24"`),
			{Namespace: "team", Name: "copy", Config: `{"cniVersion":"1.0.0","type":"bridge","bridge":"br1","ipam":{"type":"host-local","subnet":"10.1.0.128/25"}}`},
			{Namespace: "shop", Name: "other", Config: `{"cniVersion":"1.0.0","type":"macvlan","master":"eth1"}`},
		},
		Pods: []corev1.Pod{
			podOn("a", "flat", on("shop/flat", `"10.1.0.9"`)),
			podOn("b", "flat", on("shop/flat", `"10.1.0.8","192.0.2.1"`)),
			podOn("c", "flat", on("shop/flat", `"10.1.0.8"`)), // of another node
			podOn("d", "flat", on("shop/flat", `"10.1.0.200"`)),
			podOn("e", "flat", on("shop/none", `"10.1.0.201"`)),
		},
	}
	plan, err := Make(s)
	if err != nil {
		t.Fatal(err)
	}
	golden.Equal(t, "pools.yaml", plan.Pools)
	for text := range strings.SplitSeq(plan.Pools, "---\n") {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(text), &kind); err != nil {
			t.Fatal(err)
		}
		switch kind.Kind {
		case "IPPool":
			var o v1alpha1.IPPool
			if err := yaml.UnmarshalStrict([]byte(text), &o); err != nil {
				t.Fatal(err)
			}
			if _, err := block.PoolOf(&o); err != nil {
				t.Errorf("%v in\n%s", err, text)
			}
		case "IPReservation":
			var o v1alpha1.IPReservation
			if err := yaml.UnmarshalStrict([]byte(text), &o); err != nil {
				t.Fatal(err)
			}
			if _, err := ipam.ParseReservation(o.Spec.Domain, o.Spec.Ranges); err != nil {
				t.Errorf("%v in\n%s", err, text)
			}
		}
	}
}

func TestSwitch(t *testing.T) {
	node := func(cordoned bool) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Spec: corev1.NodeSpec{Unschedulable: cordoned}}
	}
	networks := []Definition{
		{Namespace: "shop", Name: "lan", Config: `{"cniVersion":"1.0.0","type":"macvlan","master":"eth1"}`},
		{Namespace: "shop", Name: "local", Config: `{"cniVersion":"1.0.0","type":"macvlan","master":"eth1","ipam":{"type":"host-local","subnet":"10.1.0.0/24"}}`},
		{Namespace: "shop", Name: "file"},
	}
	starting := func(p *corev1.Pod) { p.Status.PodIPs = nil }
	elsewhere := func(p *corev1.Pod) { p.Spec.NodeName = "node-2" }
	for _, tt := range []struct {
		name     string
		cordoned bool
		daemon   bool
		config   *Config
		pods     []corev1.Pod
		want     Switch
	}{
		{name: "ready", cordoned: true, daemon: true, pods: []corev1.Pod{podOn("a", "lan"), podOn("b", "file,nowhere", elsewhere), podOn("plain", "", starting)}},
		{name: "not cordoned, no daemon", want: Switch{Obstacles: []string{
			"fairlead-node does not serve it: there is no NodeNetwork node-1", "new pods may start on it meanwhile: run kubectl cordon node-1 first",
		}}},
		{
			name: "setting", cordoned: true, daemon: true, config: &Config{ClusterNetwork: "calico"},
			want: Switch{Obstacles: []string{`clusterNetwork of Multus, "calico": ` + notOurs}},
		},
		{
			name: "pods", cordoned: true, daemon: true,
			pods: []corev1.Pod{podOn("d", "lan", starting), podOn("c", "file"), podOn("a", "file"), podOn("b", "file"), podOn("e", "file"), podOn("f", "nowhere")},
			want: Switch{Obstacles: []string{
				"pods on it are being started: shop/d: try again when they run",
				"network shop/file of shop/a, shop/b, shop/c and 1 more is not served: " + noFile,
				"shop/f: there is no such NetworkAttachmentDefinition",
			}},
		},
		{
			name: "left", cordoned: true, daemon: true, pods: []corev1.Pod{podOn("b", "local"), podOn("a", "lan,local")},
			want: Switch{Left: []Left{{"shop/a", "shop/local", []string{"host-local"}}, {"shop/b", "shop/local", []string{"host-local"}}}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := State{Config: tt.config, Networks: networks, Pods: tt.pods}
			plan, err := Make(s)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, plan.Switch(s, node(tt.cordoned), tt.daemon)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A plan never fails for the text of a tenant, and its files are valid.
func FuzzMake(f *testing.F) {
	f.Add(`{"cniVersion":"1.0.0","type":"bridge","bridge":"*","ipam":{"type":"host-local","subnet":"10.1.0.0/24"}}`, "n", `[{"name":"shop/n","ips":["10.1.0.5"]}]`)
	f.Add(`{"cniVersion":"1.0.0","type":"bridge","ipam":{"type":"host-local","ranges":[[{"subnet":"fd00::/127","rangeStart":"x"}]]}}`, `[{"name":"n"}]`, "[")
	f.Fuzz(func(t *testing.T, text, networks, status string) {
		p := podOn("a", networks)
		p.Annotations[pod.AnnotationNetworkStatus] = status
		s := State{Networks: []Definition{{Namespace: "shop", Name: "n", Config: text}}, Pods: []corev1.Pod{p}}
		plan, err := Make(s)
		if err != nil {
			t.Fatal(err)
		}
		c := config.DefaultController()
		if err := yaml.UnmarshalStrict([]byte(plan.Configuration), &c); err != nil {
			t.Fatalf("%v in\n%s", err, plan.Configuration)
		}
		for text := range strings.SplitSeq(plan.Pools, "---\n") {
			var o map[string]any
			if err := yaml.Unmarshal([]byte(text), &o); err != nil {
				t.Fatalf("%v in\n%s", err, text)
			}
		}
		for _, n := range plan.Networks {
			if n.Served == No && n.Reason == "" {
				t.Errorf("no reason why %q is not served", text)
			}
		}
	})
}
