package neutron

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/pod"
)

// blueIsOpen opens some things to namespaces with the label team=blue.
var blueIsOpen = Opening{
	Namespaces: labels.SelectorFromSet(labels.Set{"team": "blue"}),
	Names: map[string][]string{
		KindNetwork: {"lan-*", "0e0f"}, KindSubnet: {"5ab"}, KindGroup: {"web", "ops"}, KindQoS: {"slow"}, KindProject: {"blueproject"},
	},
}

func testConfig() Config {
	return Config{
		Cluster: "east", Namespace: "fairlead-system", Project: "main", Open: []Opening{blueIsOpen},
		Default: Settings{Network: "pods", Subnets: []string{"pods4", "pods6"}, Groups: []string{"base"}},
	}
}

func TestChoose(t *testing.T) {
	on, off := true, false
	unset := testConfig()
	unset.Project, unset.Default.Groups = "", nil
	blue := map[string]string{"team": "blue"}
	onDefault := Settings{Network: "pods", Subnets: []string{"pods4", "pods6"}, Groups: []string{"base"}, Project: "main"}
	with := func(s Settings, change func(*Settings)) Settings { change(&s); return s }
	for _, tc := range []struct {
		name string
		cfg  *Config
		// network is default if it is empty.
		network       string
		asks          asks
		namespace     map[string]string // its labels
		annotations   map[string]string // of the namespace
		networkLabels map[string]string
		want          choice
		err           string
	}{
		{name: "the configuration", want: choice{Settings: onDefault}},
		{name: "without groups and project", cfg: &unset, want: choice{Settings: Settings{Network: "pods", Subnets: []string{"pods4", "pods6"}}}},
		{
			name: "the groups of the pod", namespace: blue, asks: asks{groups: []string{"web", "ops"}}, annotations: map[string]string{v1alpha1.AnnotationSecurityGroups: "ops"},
			want: choice{Settings: with(onDefault, func(s *Settings) { s.Groups = []string{"web", "ops"} }), asked: true},
		},
		{
			name: "the groups of the namespace", namespace: blue, annotations: map[string]string{v1alpha1.AnnotationSecurityGroups: "ops"},
			want: choice{Settings: with(onDefault, func(s *Settings) { s.Groups = []string{"ops"} }), asked: true},
		},
		{name: "groups of a wrong form", namespace: blue, annotations: map[string]string{v1alpha1.AnnotationSecurityGroups: ","}, err: "annotation fairlead.dev/security-groups of the namespace"},
		{
			name: "a group that is not open", namespace: blue, asks: asks{groups: []string{"web", "admin"}},
			err: `pods of namespace blue may not use annotation fairlead.dev/security-groups: security group "admin": ask the operator`,
		},
		{name: "a group in another namespace", namespace: map[string]string{"team": "red"}, asks: asks{groups: []string{"web"}}, err: `security group "web"`},
		{name: "labels that are not known", asks: asks{groups: []string{"web"}}, err: "unavailable: the labels for pods of namespace blue are not known yet"},
		{
			name: "the project of the namespace", namespace: blue, annotations: map[string]string{pod.AnnotationProject: "blueproject"},
			want: choice{Settings: with(onDefault, func(s *Settings) { s.Project = "blueproject" })},
		},
		{name: "a project that is not open", namespace: blue, annotations: map[string]string{pod.AnnotationProject: "main"}, err: `annotation openstack.org/kuryr-project: project "main"`},
		{
			name: "a network of a tenant", network: "blue/lan", networkLabels: blue, asks: asks{Settings: Settings{Network: "lan-1", Subnets: []string{"any"}}},
			want: choice{Settings: Settings{Network: "lan-1", Subnets: []string{"any"}, Groups: []string{"base"}, Project: "main"}},
		},
		{
			name: "all that is open", network: "blue/lan", networkLabels: blue,
			asks: asks{Settings: Settings{Network: "0e0f", Groups: []string{"web"}, QoSPolicy: "slow", Project: "blueproject", DNSName: &on, PortSecurity: &on}},
			want: choice{
				Settings: Settings{Network: "0e0f", Groups: []string{"web"}, QoSPolicy: "slow", Project: "blueproject", DNSName: &on, PortSecurity: &on},
				dnsName:  true,
				asked:    true,
			},
		},
		{name: "a subnet alone", network: "blue/lan", networkLabels: blue, asks: asks{Settings: Settings{Subnets: []string{"5ab"}}}, want: choice{Settings: Settings{Subnets: []string{"5ab"}, Groups: []string{"base"}, Project: "main"}}},
		{name: "a subnet that is not open", network: "blue/lan", networkLabels: blue, asks: asks{Settings: Settings{Subnets: []string{"pods4"}}}, err: `networks of namespace blue may not use subnets: subnet "pods4"`},
		{
			name: "nothing that is open", network: "blue/lan", networkLabels: map[string]string{},
			asks: asks{Settings: Settings{Network: "lan-1", Groups: []string{"web"}, QoSPolicy: "slow", Project: "blueproject", PortSecurity: &off}},
			err:  `network: network "lan-1", securityGroups: security group "web", qosPolicy: QoS policy "slow", project: project "blueproject", portSecurity: port security off "false"`,
		},
		{name: "port security off", network: "blue/lan", networkLabels: blue, asks: asks{Settings: Settings{Network: "lan-1", PortSecurity: &off}}, err: "port security off"},
		{
			name: "a network of the operator", network: "fairlead-system/lan", asks: asks{Settings: Settings{Network: "secret", Groups: []string{"admin"}, PortSecurity: &off}},
			want: choice{Settings: Settings{Network: "secret", Groups: []string{}, Project: "main", PortSecurity: &off}, noSecurity: true, asked: true},
		},
		{name: "a namespace with a longer name", network: "fairlead-system2/lan", networkLabels: map[string]string{}, asks: asks{Settings: Settings{Network: "secret"}}, err: `network "secret"`},
		{name: "no network", network: "fairlead-system/lan", err: "network: absent"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := testConfig()
			if tc.cfg != nil {
				cfg = *tc.cfg
			}
			r := &driver.Request{Owner: owner(), Network: tc.network, NamespaceLabels: tc.namespace, NamespaceAnnotations: tc.annotations, NetworkLabels: tc.networkLabels}
			if r.Network == "" {
				r.Network, r.Default = v1alpha1.DefaultNetwork, true
			}
			got, err := cfg.choose(r, tc.asks)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("error %v, want %s", err, tc.err)
				}
				return
			}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(choice{})); err != nil || diff != "" {
				t.Errorf("%v, -want +got:\n%s", err, diff)
			}
		})
	}
}

func TestRead(t *testing.T) {
	none := testConfig()
	none.Default = Settings{}
	byPlugin := &pod.Settings{Type: Type, Plugin: `{"network":"lan"}`}
	for _, tc := range []struct {
		name        string
		cfg         Config
		i           pod.Interface
		annotations map[string]string
		want        asks
		err         string
	}{
		{name: "the default network", i: pod.Default(false)},
		{name: "with groups", i: pod.Default(false), annotations: map[string]string{v1alpha1.AnnotationSecurityGroups: "a, b"}, want: asks{groups: []string{"a", "b"}}},
		{name: "with an empty list", i: pod.Default(false), annotations: map[string]string{v1alpha1.AnnotationSecurityGroups: ""}, err: "annotation fairlead.dev/security-groups: \"\": must be 1 to 16"},
		{name: "with pools", i: pod.Default(false), annotations: map[string]string{v1alpha1.AnnotationPools: "web"}, err: "annotation fairlead.dev/pools: the default network here has ports"},
		{name: "with a claim", i: pod.Default(false), annotations: map[string]string{v1alpha1.AnnotationClaim: "a"}, err: "annotation fairlead.dev/claim"},
		{name: "without a configuration", cfg: none, i: pod.Default(false), err: "openstack.ports.network of fairlead-controller is empty"},
		{name: "an additional pool", i: pod.Interface{Network: v1alpha1.DefaultNetwork, Pools: []string{"web"}}, err: "has no pools"},
		{name: "of another plugin", i: pod.Default(true), err: "another plugin makes its interfaces"},
		{name: "with a binding", i: pod.Interface{Network: "blue/lan", Binding: &v1alpha1.Binding{}, Settings: byPlugin}, err: "another plugin makes its interfaces"},
		{name: "a network", i: pod.Interface{Network: "blue/lan", Settings: byPlugin}, annotations: map[string]string{v1alpha1.AnnotationSecurityGroups: "a"}, want: asks{Settings: Settings{Network: "lan"}}},
		{name: "a wrong network", i: pod.Interface{Network: "blue/lan", Settings: &pod.Settings{Type: Type, Plugin: `{"vlan":7}`}}, err: `NetworkAttachmentDefinition blue/lan: "vlan": is not served`},
		{name: "no settings", i: pod.Interface{Network: "blue/lan"}, err: "has no pools"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.cfg.Cluster == "" {
				tc.cfg = testConfig()
			}
			d := &Driver{cfg: tc.cfg}
			got, err := d.read(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: tc.annotations}}, &tc.i)
			if tc.err != "" {
				if driver.Result(err) != "Invalid" || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("error %v, want %s", err, tc.err)
				}
				return
			}
			if diff := cmp.Diff(any(tc.want), got, cmp.AllowUnexported(asks{})); err != nil || diff != "" {
				t.Errorf("%v, -want +got:\n%s", err, diff)
			}
		})
	}
}
