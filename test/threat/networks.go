package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/cloudtest"
)

// openBridge is the bridge that the operator opened to the author's networks, with the
// plugin portmap. It is the only part of the nodes that they may use.
const openBridge = "br-nadia"

// openedNetworks is networks of the controllers. Fairlead attaches the pods of the second
// node alone, by a label of it.
func openedNetworks(parents ...string) map[string]any {
	return map[string]any{
		"isolated": true,
		"open": []map[string]any{{
			"namespaceSelector": map[string]any{"matchLabels": map[string]string{corev1.LabelMetadataName: author}},
			"bridges":           []string{openBridge}, "plugins": []string{"portmap"}, "parents": parents,
		}},
	}
}

// openedCloud is openstack of the controllers: networks of the cloud are open to the author's
// networks, and the fabric opens the ports of the nodes.
func (w *testbed) openedCloud(networks ...string) map[string]any {
	return map[string]any{
		"cluster": "threat", "cloudsFile": w.cloud.file, "cloud": cloudtest.Admin, "neutronPort": "trunk", "fabric": map[string]any{},
		"open": []map[string]any{{
			"namespaceSelector": map[string]any{"matchLabels": map[string]string{corev1.LabelMetadataName: author}},
			"networks":          append([]string{"hers-*"}, networks...),
		}},
	}
}

// inCloud returns the configuration of a network with ports of OpenStack.
func inCloud(keys string) func(*testbed) string {
	return always(`{"cniVersion":"1.0.0","type":"fairlead-neutron",` + keys + `}`)
}

// reachAttack is a network that reaches a part of the nodes that is not open.
type reachAttack struct {
	id, tries string
	// config is the network's configuration.
	config func(w *testbed) string
	// because is a part of the event that names the reason.
	because string
}

// onOpenBridge returns the configuration of an honest network with more options.
func onOpenBridge(more string) string {
	return `{"cniVersion":"1.0.0","type":"bridge","bridge":"` + openBridge + `"` + more + `}`
}

func always(config string) func(*testbed) string { return func(*testbed) string { return config } }

// reachAttacks try to reach bridges, links, files and programs of the node by a network.
func reachAttacks() []attack {
	static := `"ipam":{"type":"static","addresses":[{"address":"10.94.0.9/24"}]}`
	var out []attack
	for _, a := range []reachAttack{
		{
			"net-bridge", "a network of type bridge names a bridge that is not open",
			always(`{"cniVersion":"1.0.0","type":"bridge","bridge":"br-others",` + static + `}`), `bridge "br-others"`,
		},
		{"net-uplink", "a network of type macvlan has the node's uplink as its parent", always(`{"cniVersion":"1.0.0","type":"macvlan","master":"eth0",` + static + `}`), `parent "eth0"`},
		{"net-uplink-vlan", "a network of type vlan has the node's uplink as its parent", always(`{"cniVersion":"1.0.0","type":"vlan","master":"eth0","vlanId":7,` + static + `}`), `parent "eth0"`},
		{"net-device", "a network of type host-device takes the node's uplink", always(`{"cniVersion":"1.0.0","type":"host-device","device":"eth0"}`), `device "eth0"`},
		{
			"net-device-by-path", "the same, by a path in the kernel with ..",
			always(`{"cniVersion":"1.0.0","type":"host-device","kernelpath":"/sys/devices/virtual/net/lo/../eth0"}`), `eth0`,
		},
		{"net-plugin", "a network executes a plugin that is not open", always(`{"cniVersion":"1.0.0","type":"ptp","ipam":{"type":"static"}}`), `plugin "ptp"`},
		{"net-ovs", "a network of type ovs names a port of another in Neutron", always(`{"cniVersion":"1.0.0","type":"ovs","bridge":"br-int","portID":"3f1c2d4e-0000-4000-8000-0123456789ab"}`), `plugin "ovs"`},
		{"net-plugin-path", "the type of a network is a path to a file of hers", always(`{"cniVersion":"1.0.0","type":"../../../tmp/hers"}`), `type`},
		{
			"net-chain", "a plugin that is not open follows in the list of an honest network",
			always(`{"cniVersion":"1.0.0","plugins":[` + onOpenBridge("") + `,{"type":"tuning","sysctl":{"net.ipv4.ip_forward":"0"}}]}`), `plugin "tuning"`,
		},
		{
			"net-host-local", "the addresses are of host-local, with a folder of the node as its dataDir", func(w *testbed) string {
				return onOpenBridge(`,"ipam":{"type":"host-local","dataDir":"` + w.Path("stolen") + `","subnet":"10.94.0.0/24"}`)
			}, `plugin "host-local"`,
		},
		{
			"net-gateway", "isGateway puts the address of another machine on the bridge of the node", func(w *testbed) string {
				return onOpenBridge(`,"isGateway":true,"ipam":{"type":"static","addresses":[{"address":"192.168.77.9/24","gateway":"` + w.Net.Switch.V4.Addr().String() + `"}]}`)
			}, `address "192.168.77.1/24"`,
		},
		{"net-twice", "the key bridge stands in a network twice, first the open bridge", always(onOpenBridge(`,"bridge":"br-others"`)), `twice`},
		{"net-twice-in-case", "the same, in another case", always(onOpenBridge(`,"Bridge":"br-others"`)), `twice`},
		{"net-ipam-twice", "the key type stands twice in ipam, first an open one", always(onOpenBridge(`,"ipam":{"type":"static","type":"host-local"}`)), `twice`},
		{"cloud-network", "a network names a network of the cloud that is not open", inCloud(`"network":"prod"`), `network "prod"`},
		{
			"cloud-network-by-id", "the same by its ID, with the keys of openstack-port-cni", func(w *testbed) string {
				return `{"cniVersion":"0.4.0","type":"openstack-port-cni","network_id":"` + w.cloud.prod + `","subnet_id":"prod"}`
			}, `may not use network`,
		},
		{"cloud-network-pattern", "a network names every network of the cloud", inCloud(`"network":"*"`), `network "*"`},
		{"cloud-subnet", "a network names a subnet of the cloud without its network", inCloud(`"subnets":["hers-1"]`), `subnet "hers-1"`},
		{"cloud-group", "a network that is open names a security group that is not", inCloud(`"network":"hers-1","securityGroups":["admin"]`), `security group "admin"`},
		{"cloud-project", "a network that is open names another project", inCloud(`"network":"hers-1","project":"admin"`), `project "admin"`},
		{"cloud-qos", "a network that is open names a QoS policy", inCloud(`"network":"hers-1","qosPolicy":"gold"`), `QoS policy "gold"`},
		{"cloud-anybody", "a network that is open has its ports send as anybody", inCloud(`"network":"hers-1","portSecurity":false`), `port security off`},
		{"cloud-port", "a network names the port of a machine", inCloud(`"network":"hers-1","port":"0d5e3a52-8a2f-4a0c-9f0e-000000000002"`), `"port": is not served`},
		{"cloud-binding", "a network names a bridge of Open vSwitch on the node", always(`{"cniVersion":"0.4.0","type":"openstack-port-cni","network_id":"hers-1","bridge":"br-ex"}`), `must be ["br-int"]`},
		{"net-huge", "the configuration of a network has 600 KB", always(onOpenBridge(`,"x":"` + strings.Repeat("x", 600<<10) + `"`)), `bytes`},
	} {
		out = append(out, attack{id: a.id, by: byAuthor, tries: a.tries, do: asUser(author, func(ctx context.Context, w *testbed, api client.Client) (effect, error) {
			return w.reach(ctx, api, a)
		})})
	}
	return out
}

// reach creates a network and a pod of it on the second node. The attack succeeds if the
// pod has a record: its node makes the interfaces of the record. The refusal must have the
// expected reason.
func (w *testbed) reach(ctx context.Context, api client.Client, a reachAttack) (effect, error) {
	nad := definition(author, a.id, a.config(w))
	if err := api.Create(ctx, nad); err != nil {
		return effect{}, err
	}
	p := newPod(author, a.id, w.nodes[1].Name, map[string]string{pod.AnnotationNetworks: a.id})
	out, err := w.refusedPod(ctx, api, p, a.because)
	return out, errors.Join(err, api.Delete(ctx, nad))
}

// refusedPod creates a pod that must get no record, for a reason that an event names.
func (w *testbed) refusedPod(ctx context.Context, api client.Client, p *corev1.Pod, because string) (effect, error) {
	f, err := w.decided(ctx, api, p, because)
	if err != nil {
		return effect{}, err
	}
	if f.record == nil && !strings.Contains(f.note, because) {
		return effect{}, errors.Join(fmt.Errorf("pod %s has no record, but not because of %s: %s", p.Name, because, f.note), w.remove(ctx, p))
	}
	return effect{f.record != nil, f.String()}, w.remove(ctx, p)
}

// decided creates a pod and waits for its record, or for an event that names a reason. The
// controller may see the pod before it sees the network, which is another event.
func (w *testbed) decided(ctx context.Context, api client.Client, p *corev1.Pod, because string) (f podResult, err error) {
	if f, err = w.try(ctx, api, p); err != nil || p.UID == "" {
		return f, err
	}
	_, err = within(ctx, patience, func(ctx context.Context) (seen bool, err error) {
		if f.record, err = w.recordOf(ctx, p); err != nil || f.record != nil {
			return true, err
		}
		f.note, err = w.noteOn(ctx, p)
		return because != "" && strings.Contains(f.note, because), err
	})
	return f, err
}

func definition(namespace, name, config string) *unstructured.Unstructured {
	out := network(name, nil)
	out.SetNamespace(namespace)
	out.Object["spec"] = map[string]any{"config": config}
	return out
}

// selectionAttacks try the annotations of a pod on an honest network.
func selectionAttacks() []attack {
	var out []attack
	for _, a := range []struct{ id, tries, value, because string }{
		{"name-eth0", "a pod calls an interface eth0, as the default one", `[{"name":"honest","interface":"eth0"}]`, "eth0"},
		{"name-lo", "a pod calls an interface lo", `[{"name":"honest","interface":"lo"}]`, `lo`},
		{"name-path", "the name of an interface is a path", `[{"name":"honest","interface":"../../x"}]`, `../../x`},
		{"name-twice", "two interfaces have one name", `[{"name":"honest","interface":"a"},{"name":"honest","interface":"a"}]`, `a`},
		{"net-of-another", "a pod selects the network of another namespace", other + "/lan", "networks.isolated"},
		{"net-name-path", "the name of a network is a path to another namespace", "../" + other + "/lan", other},
		{"net-5000", "an annotation selects 5,000 networks", "honest" + strings.Repeat(",honest", 4999), pod.AnnotationNetworks},
	} {
		out = append(out, attack{id: a.id, by: byAuthor, tries: a.tries, do: asUser(author, func(ctx context.Context, w *testbed, api client.Client) (out effect, err error) {
			return w.withHonest(ctx, api, func() (effect, error) {
				p := newPod(author, a.id, w.nodes[1].Name, map[string]string{pod.AnnotationNetworks: a.value})
				return w.refusedPod(ctx, api, p, a.because)
			})
		})})
	}
	for _, p := range []int{22, 6443, 10250} {
		out = append(out, attack{
			id: fmt.Sprintf("portmap-%d", p), by: byAuthor, tries: fmt.Sprintf("portMappings of an annotation ask portmap, which is open, for the host port %d", p),
			do: asUser(author, func(ctx context.Context, w *testbed, api client.Client) (effect, error) {
				return w.takePluginPort(ctx, api, p)
			}),
		})
	}
	return append(out,
		attack{id: "forged-status", by: byAuthor, tries: "a pod has the victim's addresses in its annotation network-status", do: asUser(author, forgeStatus)},
		attack{id: "plug-by-hand", by: byAuthor, tries: "the uplink is added to the interfaces of the record of her own pod", do: asUser(author, plugByHand)},
		attack{id: "plugged-by-hand", by: byAuthor, tries: "the status of her own pod's record is written", do: asUser(author, pluggedByHand)},
	)
}

// withHonest runs an attack while the author has a network that may be used, and another
// user has one too.
func (w *testbed) withHonest(ctx context.Context, api client.Client, attack func() (effect, error)) (effect, error) {
	honest, lan := definition(author, "honest", onOpenBridge("")), definition(other, "lan", onOpenBridge(""))
	if err := errors.Join(api.Create(ctx, honest), w.Create(ctx, lan)); err != nil {
		return effect{}, err
	}
	out, err := attack()
	return out, errors.Join(err, api.Delete(ctx, honest), w.Delete(ctx, lan))
}

// honestPod returns a pod of an honest network that runs, with its record.
func (w *testbed) honestPod(ctx context.Context, api client.Client, p *corev1.Pod) (podResult, error) {
	f, err := w.decided(ctx, api, p, "")
	if err == nil && (f.record == nil || len(f.record.Spec.Interfaces) != 2) {
		err = fmt.Errorf("a pod of an honest network got %v", f)
	}
	if err != nil {
		return f, err
	}
	ns, err := w.running(ctx, p, w.nodes[1])
	if err != nil {
		return f, err
	}
	return f, ns.Close()
}

// takePluginPort asks an executed plugin for a port of the node's own. The attack succeeds
// if the pod runs.
func (w *testbed) takePluginPort(ctx context.Context, api client.Client, hostPort int) (effect, error) {
	name := fmt.Sprintf("portmap-%d", hostPort)
	nad := definition(author, name, `{"cniVersion":"1.0.0","plugins":[`+onOpenBridge("")+`,{"type":"portmap","capabilities":{"portMappings":true}}]}`)
	if err := api.Create(ctx, nad); err != nil {
		return effect{}, err
	}
	p := newPod(author, name, w.nodes[1].Name, map[string]string{
		pod.AnnotationNetworks: fmt.Sprintf(`[{"name":%q,"portMappings":[{"hostPort":%d,"containerPort":5555}]}]`, name, hostPort),
	})
	if err := api.Create(ctx, p); err != nil {
		return effect{}, err
	}
	path, note := "", ""
	_, err := within(ctx, patience, func(ctx context.Context) (seen bool, err error) {
		if path, err = w.nodes[1].sandboxOf(p.UID); err != nil || path != "" {
			return true, err
		}
		note, err = w.noteOn(ctx, p)
		return strings.Contains(note, "reserved for the node"), err
	})
	switch {
	case err != nil:
		return effect{}, err
	case path == "" && !strings.Contains(note, "reserved for the node"):
		err = fmt.Errorf("the pod does not run, but not because the port is reserved: %s", note)
	}
	return effect{path != "", "runs: " + fmt.Sprint(path != "") + "; " + oneLine(note)}, errors.Join(err, w.remove(ctx, p), api.Delete(ctx, nad))
}

// forgeStatus gives a pod the annotation in which others read a pod's addresses. The attack
// succeeds if the annotation stays.
func forgeStatus(ctx context.Context, w *testbed, api client.Client) (effect, error) {
	return w.withHonest(ctx, api, func() (effect, error) {
		forged := fmt.Sprintf(`[{"name":"fairlead","interface":"eth0","ips":[%q],"default":true}]`, dbAddress(w))
		p := newPod(author, "forged-status", w.nodes[1].Name, map[string]string{pod.AnnotationNetworks: "honest", pod.AnnotationNetworkStatus: forged})
		f, err := w.honestPod(ctx, api, p)
		if err != nil {
			return effect{}, err
		}
		has := forged
		replaced, err := within(ctx, patience, func(ctx context.Context) (bool, error) {
			err := w.Get(ctx, client.ObjectKeyFromObject(p), p)
			has = p.Annotations[pod.AnnotationNetworkStatus]
			return !strings.Contains(has, dbAddress(w)), err
		})
		if err != nil {
			return effect{}, err
		}
		return effect{!replaced || hasDB(w, f), "the annotation is " + oneLine(has)}, w.remove(ctx, p)
	})
}

// plugByHand adds an interface to the record of a pod of the author's.
func plugByHand(ctx context.Context, w *testbed, api client.Client) (effect, error) {
	return w.writeOwn(ctx, api, func(record client.Object) error {
		patch := `[{"op":"add","path":"/spec/interfaces/-","value":{"name":"net9","network":"nadia/x","driver":"fixed","binding":{"hostDevice":{"name":"eth0"}}}}]`
		return api.Patch(ctx, record, client.RawPatch(types.JSONPatchType, []byte(patch)))
	})
}

// pluggedByHand writes the status of the record of a pod of the author's.
func pluggedByHand(ctx context.Context, w *testbed, api client.Client) (effect, error) {
	return w.writeOwn(ctx, api, func(record client.Object) error {
		return api.SubResource("status").Patch(ctx, record, client.RawPatch(types.MergePatchType, []byte(`{"status":{"interfaces":[{"name":"net1","active":true}]}}`)))
	})
}

// writeOwn writes the record of a pod of the author's, which the API server must refuse.
func (w *testbed) writeOwn(ctx context.Context, api client.Client, write func(record client.Object) error) (effect, error) {
	return w.withHonest(ctx, api, func() (effect, error) {
		p := newPod(author, "own", w.nodes[1].Name, map[string]string{pod.AnnotationNetworks: "honest"})
		f, err := w.honestPod(ctx, api, p)
		if err != nil {
			return effect{}, err
		}
		out, err := mustBeRefused(write(f.record))
		return out, errors.Join(err, w.remove(ctx, p))
	})
}
