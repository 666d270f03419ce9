package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/cloudtest"
	"fairlead.dev/fairlead/test/netlab"
)

// cloud is a cloud in memory. Both nodes are machines there, and the port of each is the parent
// of a trunk. Each trunk has a subport of the victim.
type cloud struct {
	*cloudtest.Server
	file     string               // its clouds.yaml
	machines map[string]inCloudOf // by node
	// outsider is the ID of the port of a machine that is no node, and outsiderAsMade is its
	// opening at first.
	outsider, outsiderAsMade string
	// prod is the ID of a network that is open to nobody.
	prod string
}

// opening returns the entries of a port that let more than its own addresses pass.
func (c *cloud) opening(port string) string {
	p := c.Object("ports", port)
	return fmt.Sprint(p["allowed_address_pairs"], p["security_groups"])
}

// inCloudOf has the IDs of one machine in the cloud.
type inCloudOf struct{ network, port, mac, trunk, victim string }

// Subports of the victim: the same VLAN on each trunk, and an address for each node.
const (
	victimVLAN   = 7
	victimPrefix = hersPrefix + "5"
	// hersPrefix begins the addresses of the network that is open to the author.
	hersPrefix = "10.95.0."
)

// startCloud serves the cloud to the controllers.
func (w *testbed) startCloud(ctx context.Context) error {
	listener, err := w.Net.Switch.Listen(ctx, w.Net.Switch.V4.Addr().String()+":0")
	if err != nil {
		return err
	}
	w.cloud = &cloud{Server: cloudtest.NewServer(), file: w.Path("clouds.yaml"), machines: map[string]inCloudOf{}}
	server := &http.Server{Handler: w.cloud, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }() // until the program ends
	err = w.cloud.WriteFile(w.cloud.file, "http://"+listener.Addr().String())
	if err := errors.Join(err, w.cloud.build(w.nodes)); err != nil {
		return err
	}
	w.cloud.outsider, err = w.cloud.machine(w.cloud.machines[w.nodes[0].Name].network, w.Net.Nodes[2])
	if err == nil {
		w.cloud.outsiderAsMade = w.cloud.opening(w.cloud.outsider)
	}
	return err
}

// machine makes the port of a machine on a network.
func (c *cloud) machine(network string, m *netlab.Machine) (string, error) {
	return c.Create("ports", cloudtest.AdminProject, cloudtest.Object{
		"name": m.Name, "network_id": network, "device_id": "machine-" + m.Name, "device_owner": "compute:nova",
		"fixed_ips": []any{cloudtest.Object{"ip_address": m.V4.Addr().String()}},
	})
}

// build makes the networks, and the machine of each node.
func (c *cloud) build(nodes []*node) error {
	network := func(name, cidr string) (string, error) {
		id, err := c.Create("networks", cloudtest.AdminProject, cloudtest.Object{"name": name})
		if err != nil {
			return "", err
		}
		_, err = c.Create("subnets", cloudtest.AdminProject, cloudtest.Object{"name": name, "network_id": id, "cidr": cidr, "ip_version": 4.0, "enable_dhcp": false})
		return id, err
	}
	machines, err := network("machines", nodes[0].V4.Masked().String())
	if err != nil {
		return err
	}
	pods, err := network("hers-1", hersPrefix+"0/24")
	if err != nil {
		return err
	}
	if c.prod, err = network("prod", "10.96.0.0/24"); err != nil {
		return err
	}
	for resource, name := range map[string]string{"security-groups": "admin", "qos/policies": "gold"} { // no entry of openstack.open names them
		if _, err := c.Create(resource, cloudtest.AdminProject, cloudtest.Object{"name": name}); err != nil {
			return err
		}
	}
	for i, n := range nodes {
		m := inCloudOf{network: machines}
		fixed := func(address string) []any { return []any{cloudtest.Object{"ip_address": address}} }
		if m.port, err = c.machine(machines, n.Machine); err != nil {
			return err
		}
		m.victim, err = c.Create("ports", cloudtest.AdminProject, cloudtest.Object{"name": "victim", "network_id": pods, "fixed_ips": fixed(victimPrefix + fmt.Sprint(i))})
		if err != nil {
			return err
		}
		m.trunk, err = c.Create("trunks", cloudtest.AdminProject, cloudtest.Object{
			"name": n.Name, "port_id": m.port, "sub_ports": []any{cloudtest.Object{"port_id": m.victim, "segmentation_type": "vlan", "segmentation_id": float64(victimVLAN)}},
		})
		if err != nil {
			return err
		}
		m.mac = c.Object("ports", m.port)["mac_address"].(string)
		c.machines[n.Name] = m
	}
	return nil
}

// subports returns the VLANs of the trunk of a node by port.
func (c *cloud) subports(node string) map[string]int {
	out := map[string]int{}
	for _, s := range c.Object("trunks", c.machines[node].trunk)["sub_ports"].([]any) {
		s := s.(cloudtest.Object)
		out[s["port_id"].(string)] = int(s["segmentation_id"].(float64))
	}
	return out
}

// harm describes each thing of others that is not as it was made: the trunk of the other
// node, and the subports of the victim. An interface must be on the trunk of its own node.
func (w *testbed) harm(f podResult) string {
	var out []string
	for _, n := range w.nodes {
		m, has := w.cloud.machines[n.Name], w.cloud.subports(n.Name)
		if has[m.victim] != victimVLAN || n.Name != badNode && len(has) != 1 {
			out = append(out, fmt.Sprintf("the trunk of %s has %v", n.Name, has))
		}
		pairs, _ := w.cloud.Object("ports", m.port)["allowed_address_pairs"].([]any)
		for _, pair := range pairs { // those of the fabric are of the default network
			if at, _ := pair.(cloudtest.Object)["ip_address"].(string); strings.HasPrefix(at, hersPrefix) {
				out = append(out, fmt.Sprintf("the port of %s has the pair %v", n.Name, pair))
			}
		}
	}
	if f.record != nil {
		for _, i := range f.record.Spec.Interfaces[1:] {
			v := i.Binding.VLAN
			if v == nil || v.ParentMAC != w.cloud.machines[badNode].mac || v.ID == victimVLAN || strings.HasPrefix(i.Addresses[0], victimPrefix) {
				out = append(out, "the pod has "+jsonOf(i))
			}
		}
	}
	return strings.Join(out, "; ")
}

// trunkAttacks try to reach a VLAN, a trunk or a machine of another.
func trunkAttacks() []attack {
	var out []attack
	for _, a := range []reachAttack{
		{"trunk-vlan", "a network names the VLAN of another's subport", inCloud(`"network":"hers-1","vlan":7`), `"vlan": is not served`},
		{"trunk-name", "a network names the trunk of another node", inCloud(`"network":"hers-1","trunk":"node-1"`), `"trunk": is not served`},
		{"trunk-parent", "a network names the port of another machine as its parent", inCloud(`"network":"hers-1","parent":"node-1"`), `"parent": is not served`},
		{"trunk-profile", "the same, by the binding of Neutron", inCloud(`"network":"hers-1","binding:profile":{"parent_name":"node-1","tag":7}`), `"binding:profile": is not served`},
		{"trunk-way", "a network chooses how ports are made ready on the node", inCloud(`"network":"hers-1","neutronPort":"macvlan"`), `"neutronPort": is not served`},
		{"trunk-by-mac", "a network of type vlan names the machine's port by its MAC, as a record does", func(w *testbed) string {
			return `{"cniVersion":"1.0.0","type":"vlan","vlanId":7,"parentMAC":"` + w.cloud.machines[badNode].mac + `"}`
		}, `master: "": must name the link`},
		{"trunk-machines", "a network names the network of the machines", inCloud(`"network":"machines"`), `network "machines"`},
	} {
		out = append(out, attack{id: a.id, by: byAuthor, tries: a.tries, do: asUser(author, func(ctx context.Context, w *testbed, api client.Client) (effect, error) {
			return w.reach(ctx, api, a)
		})})
	}
	for _, a := range []struct {
		id, tries string
		asks      func(w *testbed) map[string]any
	}{
		{"subport-honest", "a pod asks for nothing: it has a VLAN of the trunk of its own node", func(*testbed) map[string]any { return nil }},
		{"subport-address", "a pod asks for the address of a subport of the other node's trunk", func(*testbed) map[string]any {
			return map[string]any{"ips": []string{victimPrefix + "0"}}
		}},
		{"subport-mac", "a pod asks for the MAC of a subport of the other node's trunk", func(w *testbed) map[string]any {
			return map[string]any{"mac": w.cloud.Object("ports", w.cloud.machines["node-1"].victim)["mac_address"]}
		}},
		{"subport-vlan", "a pod asks for the VLAN of another's subport", func(w *testbed) map[string]any {
			return map[string]any{"cni-args": map[string]any{"vlan": victimVLAN, "vlanId": victimVLAN, "port": w.cloud.machines["node-1"].victim}}
		}},
	} {
		out = append(out, attack{id: a.id, by: byAuthor, tries: a.tries, do: asUser(author, func(ctx context.Context, w *testbed, api client.Client) (effect, error) {
			return w.onTrunk(ctx, api, a.id, a.asks(w), a.id == "subport-honest" || a.id == "subport-vlan")
		})})
	}
	return append(out,
		asNode("node-relabels", "changes how the ports of its pods are made, with the token of its daemon", func(ctx context.Context, _ *testbed, api client.Client) error {
			return api.Patch(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: badNode}}, patchOf(fmt.Sprintf(`{"metadata":{"labels":{%q:"host"}}}`, v1alpha1.LabelNeutronPort)))
		}),
		attack{
			id: "node-other-machine", by: byNode, tries: "reports the address of the other node as its own, has a new leader, and starts a pod", node: badNode,
			do: asUser(author, otherMachine),
		},
	)
}

// onTrunk creates a pod on a network with ports of the cloud, on the second node. The attack
// succeeds if anything of others changes, or if the pod has something of others. served is
// true if the pod must get its interface.
func (w *testbed) onTrunk(ctx context.Context, api client.Client, name string, asks map[string]any, served bool) (effect, error) {
	nad := definition(author, "hers", inCloud(`"network":"hers-1"`)(w))
	if err := api.Create(ctx, nad); err != nil {
		return effect{}, err
	}
	selection := map[string]any{"name": "hers"}
	maps.Copy(selection, asks)
	p := newPod(author, name, badNode, map[string]string{pod.AnnotationNetworks: jsonOf([]any{selection})})
	// Events come late while the cloud makes a port.
	f, err := w.decided(ctx, api, p, "NetworkConflict")
	if err != nil {
		return effect{}, err
	}
	harm := w.harm(f)
	if served && f.record == nil {
		err = fmt.Errorf("pod %s got no interface: %s", name, f.note)
	}
	out := effect{harm != "", f.String()}
	if harm != "" {
		out.got = harm
	}
	return out, errors.Join(err, w.remove(ctx, p), api.Delete(ctx, nad))
}

// otherMachine has the bad node's kubelet report the address of the other node. The next leader
// does not remember the machine.
func otherMachine(ctx context.Context, w *testbed, api client.Client) (out effect, err error) {
	bad := w.nodes[1]
	kubelet, err := w.clientOf(w.Kubelab() + "/" + bad.Name + ".kubeconfig")
	if err != nil {
		return out, err
	}
	honest := &corev1.Node{}
	if err := w.Get(ctx, client.ObjectKey{Name: bad.Name}, honest); err != nil {
		return out, err
	}
	report := func(addresses []corev1.NodeAddress) error {
		n := &corev1.Node{}
		if err := w.Get(ctx, client.ObjectKey{Name: bad.Name}, n); err != nil {
			return err
		}
		n.Status.Addresses = addresses
		return kubelet.Status().Update(ctx, n)
	}
	err = stopped(bad.Runner, func() error {
		if err := report([]corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: w.nodes[0].V4.Addr().String()}}); err != nil {
			return err
		}
		err := w.changeLeader(ctx)
		if err == nil {
			nad := definition(author, "hers", inCloud(`"network":"hers-1"`)(w))
			p := newPod(author, "other-machine", bad.Name, map[string]string{pod.AnnotationNetworks: "hers"})
			if err := api.Create(ctx, nad); err != nil {
				return err
			}
			out, err = w.refusedPod(ctx, api, p, "Node node-2 has the same machine or address as Node node-1")
			if harm := w.harm(podResult{}); harm != "" {
				out = effect{true, harm}
			}
			err = errors.Join(err, api.Delete(ctx, nad))
		}
		return errors.Join(err, report(honest.Status.Addresses))
	})
	return out, errors.Join(err, w.trafficFlows(ctx))
}
