package choice

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
		Namespace: "fairlead-system", Project: "main", Open: []Opening{blueIsOpen},
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
		asks          Asks
		namespace     map[string]string // its labels
		annotations   map[string]string // of the namespace
		networkLabels map[string]string
		want          Choice
		err           string
	}{
		{name: "the configuration", want: Choice{Settings: onDefault}},
		{name: "without groups and project", cfg: &unset, want: Choice{Settings: Settings{Network: "pods", Subnets: []string{"pods4", "pods6"}}}},
		{
			name: "the groups of the pod", namespace: blue, asks: Asks{PodGroups: []string{"web", "ops"}}, annotations: map[string]string{v1alpha1.AnnotationSecurityGroups: "ops"},
			want: Choice{Settings: with(onDefault, func(s *Settings) { s.Groups = []string{"web", "ops"} }), Asked: true},
		},
		{
			name: "the groups of the namespace", namespace: blue, annotations: map[string]string{v1alpha1.AnnotationSecurityGroups: "ops"},
			want: Choice{Settings: with(onDefault, func(s *Settings) { s.Groups = []string{"ops"} }), Asked: true},
		},
		{name: "groups of a wrong form", namespace: blue, annotations: map[string]string{v1alpha1.AnnotationSecurityGroups: ","}, err: "annotation fairlead.dev/security-groups of the namespace"},
		{
			name: "a group that is not open", namespace: blue, asks: Asks{PodGroups: []string{"web", "admin"}},
			err: `pods of namespace blue may not use annotation fairlead.dev/security-groups: security group "admin": ask the operator`,
		},
		{name: "a group in another namespace", namespace: map[string]string{"team": "red"}, asks: Asks{PodGroups: []string{"web"}}, err: `security group "web"`},
		{name: "labels that are not known", asks: Asks{PodGroups: []string{"web"}}, err: "unavailable: the labels for pods of namespace blue are not known yet"},
		{
			name: "the project of the namespace", namespace: blue, annotations: map[string]string{pod.AnnotationProject: "blueproject"},
			want: Choice{Settings: with(onDefault, func(s *Settings) { s.Project = "blueproject" })},
		},
		{name: "a project that is not open", namespace: blue, annotations: map[string]string{pod.AnnotationProject: "main"}, err: `annotation openstack.org/kuryr-project: project "main"`},
		{
			name: "a network of a tenant", network: "blue/lan", networkLabels: blue, asks: Asks{Settings: Settings{Network: "lan-1", Subnets: []string{"any"}}},
			want: Choice{Settings: Settings{Network: "lan-1", Subnets: []string{"any"}, Groups: []string{"base"}, Project: "main"}},
		},
		{
			name: "all that is open", network: "blue/lan", networkLabels: blue,
			asks: Asks{Settings: Settings{Network: "0e0f", Groups: []string{"web"}, QoSPolicy: "slow", Project: "blueproject", DNSName: &on, PortSecurity: &on}},
			want: Choice{
				Settings: Settings{Network: "0e0f", Groups: []string{"web"}, QoSPolicy: "slow", Project: "blueproject", DNSName: &on, PortSecurity: &on},
				PodDNS:   true,
				Asked:    true,
			},
		},
		{name: "a subnet alone", network: "blue/lan", networkLabels: blue, asks: Asks{Settings: Settings{Subnets: []string{"5ab"}}}, want: Choice{Settings: Settings{Subnets: []string{"5ab"}, Groups: []string{"base"}, Project: "main"}}},
		{name: "a subnet that is not open", network: "blue/lan", networkLabels: blue, asks: Asks{Settings: Settings{Subnets: []string{"pods4"}}}, err: `networks of namespace blue may not use subnets: subnet "pods4"`},
		{
			name: "nothing that is open", network: "blue/lan", networkLabels: map[string]string{},
			asks: Asks{Settings: Settings{Network: "lan-1", Groups: []string{"web"}, QoSPolicy: "slow", Project: "blueproject", PortSecurity: &off}},
			err:  `network: network "lan-1", securityGroups: security group "web", qosPolicy: QoS policy "slow", project: project "blueproject", portSecurity: port security off "false"`,
		},
		{name: "port security off", network: "blue/lan", networkLabels: blue, asks: Asks{Settings: Settings{Network: "lan-1", PortSecurity: &off}}, err: "port security off"},
		{
			name: "a network of the operator", network: "fairlead-system/lan", asks: Asks{Settings: Settings{Network: "secret", Groups: []string{"admin"}, PortSecurity: &off}},
			want: Choice{Settings: Settings{Network: "secret", Groups: []string{}, Project: "main", PortSecurity: &off}, NoSecurity: true, Asked: true},
		},
		{name: "a namespace with a longer name", network: "fairlead-system2/lan", networkLabels: map[string]string{}, asks: Asks{Settings: Settings{Network: "secret"}}, err: `network "secret"`},
		{name: "no network", network: "fairlead-system/lan", err: "network: absent"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := testConfig()
			if tc.cfg != nil {
				cfg = *tc.cfg
			}
			r := &driver.Request{Owner: driver.Owner{Namespace: "blue", PodName: "web"}, Network: tc.network, NamespaceLabels: tc.namespace, NamespaceAnnotations: tc.annotations, NetworkLabels: tc.networkLabels}
			if r.Network == "" {
				r.Network, r.Default = v1alpha1.DefaultNetwork, true
			}
			got, err := cfg.Choose(r, tc.asks)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("error %v, want %s", err, tc.err)
				}
				return
			}
			if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
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
		want        Asks
		err         string
	}{
		{name: "the default network", i: pod.Default(false)},
		{name: "with groups", i: pod.Default(false), annotations: map[string]string{v1alpha1.AnnotationSecurityGroups: "a, b"}, want: Asks{PodGroups: []string{"a", "b"}}},
		{name: "with an empty list", i: pod.Default(false), annotations: map[string]string{v1alpha1.AnnotationSecurityGroups: ""}, err: "annotation fairlead.dev/security-groups: \"\": must be 1 to 16"},
		{name: "with pools", i: pod.Default(false), annotations: map[string]string{v1alpha1.AnnotationPools: "web"}, err: "annotation fairlead.dev/pools: the default network here has ports"},
		{name: "with a claim", i: pod.Default(false), annotations: map[string]string{v1alpha1.AnnotationClaim: "a"}, err: "annotation fairlead.dev/claim"},
		{name: "without a configuration", cfg: none, i: pod.Default(false), err: "openstack.ports.network of fairlead-controller is empty"},
		{name: "an additional pool", i: pod.Interface{Network: v1alpha1.DefaultNetwork, Pools: []string{"web"}}, err: "has no pools"},
		{name: "of another plugin", i: pod.Default(true), err: "another plugin makes its interfaces"},
		{name: "with a binding", i: pod.Interface{Network: "blue/lan", Binding: &v1alpha1.Binding{}, Settings: byPlugin}, err: "another plugin makes its interfaces"},
		{name: "a network", i: pod.Interface{Network: "blue/lan", Settings: byPlugin}, annotations: map[string]string{v1alpha1.AnnotationSecurityGroups: "a"}, want: Asks{Settings: Settings{Network: "lan"}}},
		{name: "a wrong network", i: pod.Interface{Network: "blue/lan", Settings: &pod.Settings{Type: Type, Plugin: `{"vlan":7}`}}, err: `NetworkAttachmentDefinition blue/lan: "vlan": is not served`},
		{name: "no settings", i: pod.Interface{Network: "blue/lan"}, err: "has no pools"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.cfg.Namespace == "" {
				tc.cfg = testConfig()
			}
			got, err := tc.cfg.Read(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: tc.annotations}}, &tc.i)
			if tc.err != "" {
				if driver.Result(err) != "Invalid" || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("error %v, want %s", err, tc.err)
				}
				return
			}
			if diff := cmp.Diff(any(tc.want), got); err != nil || diff != "" {
				t.Errorf("%v, -want +got:\n%s", err, diff)
			}
		})
	}
}

// Only interfaces of launchers belong to a machine.
func TestInterfacesOfMachines(t *testing.T) {
	yes, controller := true, metav1.OwnerReference{APIVersion: "kubevirt.io/v1", Kind: pod.InstanceKind, Name: "vm", UID: "instance"}
	controller.Controller = &yes
	further := pod.Interface{Network: "blue/lan", Settings: &pod.Settings{Type: Type, Plugin: `{"network":"lan"}`}}
	for _, tc := range []struct {
		name        string
		i           pod.Interface
		owner       *metav1.OwnerReference
		annotations map[string]string
		want        bool
	}{
		{"a further interface", further, &controller, nil, true},
		{"of a pod", further, nil, nil, false},
		{"behind the address of the pod", pod.Default(false), &controller, nil, false},
		{"with the address of the pod", pod.Default(false), &controller, map[string]string{pod.AnnotationBridged: ""}, true},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Annotations: tc.annotations, Labels: map[string]string{"kubevirt.io": "virt-launcher", pod.LabelInstance: "instance"},
		}}
		if tc.owner != nil {
			p.OwnerReferences = []metav1.OwnerReference{*tc.owner}
		}
		got, err := testConfig().Read(p, &tc.i)
		if err != nil || (got.(Asks).Machine != nil) != tc.want {
			t.Errorf("%s: %+v, %v, want %v", tc.name, got, err, tc.want)
		}
	}
}
