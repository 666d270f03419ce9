package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/layer3/routers"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/groups"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/trunks"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"

	"fairlead.dev/fairlead/test/openstack/lab"
	"fairlead.dev/fairlead/test/pages"
)

// kuryrName begins the names of what TestKuryrPage makes.
const kuryrName = "page-kuryr"

// TestKuryrPage gives the commands of OpenStack's client on docs/operator/migrate-kuryr.md, and
// looks that they find and delete what Kuryr has left.
func TestKuryrPage(t *testing.T) {
	l := lab.Use(t)
	if l.KeystoneURL == "" {
		t.Skip("the client of OpenStack needs Keystone, which a light laboratory lacks")
	}
	neutron, err := l.Network(t.Context(), lab.K8s)
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/operator/migrate-kuryr.md")
	if err != nil {
		t.Fatal(err)
	}
	k := &kuryrLeft{T: t, neutron: neutron, later: context.WithoutCancel(t.Context())}
	k.make()
	names := strings.NewReplacer("PORT", k.subport, "TRUNK", kuryrName, "ROUTER", kuryrName, "SUBNET", kuryrName, "NETWORK", kuryrName, "GROUP", kuryrName)
	output := ""
	for _, b := range pages.Blocks(string(page)) {
		if b.Language != "" {
			continue
		}
		for _, command := range b.Commands() {
			if strings.HasPrefix(command, "openstack ") {
				output += inLab(t, l, names.Replace(command))
			}
		}
	}
	for _, want := range []string{k.subport, k.port, k.trunk} {
		if !strings.Contains(output, want) {
			t.Errorf("no command has shown %s:\n%s", want, output)
		}
	}
	for what, gone := range map[string]error{
		"the subport":        ports.Get(t.Context(), neutron, k.subport).Err,
		"the port":           ports.Get(t.Context(), neutron, k.port).Err,
		"the network":        networks.Get(t.Context(), neutron, k.network).Err,
		"the security group": groups.Get(t.Context(), neutron, k.group).Err,
	} {
		if !gophercloud.ResponseCodeIs(gone, 404) {
			t.Errorf("%s is left: %v", what, gone)
		}
	}
}

// inLab runs a command with the laboratory's client of OpenStack, and returns its output.
func inLab(t *testing.T, l *lab.Lab, command string) string {
	t.Helper()
	bin := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\nexec '%s' --os-cloud %s \"$@\"\n", filepath.Join(l.State, "bin", "openstack"), lab.K8s)
	if err := os.WriteFile(filepath.Join(bin, "openstack"), []byte(script), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-o", "pipefail", "-c", command)
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}

// kuryrLeft is what Kuryr leaves in OpenStack, by ID.
type kuryrLeft struct {
	*testing.T
	neutron *gophercloud.ServiceClient
	later   context.Context //nolint:containedctx // for the cleanup

	network, port, subport, trunk, group string
}

// cleanup deletes something after the test, unless it is gone.
func (k *kuryrLeft) cleanup(what string, do func(context.Context) error) {
	k.Cleanup(func() {
		if err := do(k.later); err != nil && !gophercloud.ResponseCodeIs(err, 404) {
			k.Errorf("delete %s: %v", what, err)
		}
	})
}

func (k *kuryrLeft) must(err error) {
	k.Helper()
	if err != nil {
		k.Fatal(err)
	}
}

// make makes the network of a namespace at a router, a port and a subport of Kuryr, the trunk
// of a machine, and a security group.
func (k *kuryrLeft) make() {
	k.Helper()
	ctx := k.Context()
	var subnet string
	k.network, subnet = k.addNetwork(kuryrName, "10.92.0.0/24")
	machines, _ := k.addNetwork(kuryrName+"-machines", "10.92.1.0/24")
	router, err := routers.Create(ctx, k.neutron, routers.CreateOpts{Name: kuryrName}).Extract()
	k.must(err)
	k.cleanup("the router", func(ctx context.Context) error { return routers.Delete(ctx, k.neutron, router.ID).ExtractErr() })
	_, err = routers.AddInterface(ctx, k.neutron, router.ID, routers.AddInterfaceOpts{SubnetID: subnet}).Extract()
	k.must(err)
	k.cleanup("the router's interface", func(ctx context.Context) error {
		return routers.RemoveInterface(ctx, k.neutron, router.ID, routers.RemoveInterfaceOpts{SubnetID: subnet}).Err
	})
	k.port, k.subport = k.addPort(k.network, "compute:kuryr"), k.addPort(k.network, "compute:kuryr")
	parent := k.addPort(machines, "compute:nova")
	trunk, err := trunks.Create(ctx, k.neutron, trunks.CreateOpts{
		Name: kuryrName, PortID: parent, Subports: []trunks.Subport{{PortID: k.subport, SegmentationID: 101, SegmentationType: "vlan"}},
	}).Extract()
	k.must(err)
	k.trunk = trunk.ID
	k.cleanup("the trunk", func(ctx context.Context) error { return trunks.Delete(ctx, k.neutron, k.trunk).ExtractErr() })
	group, err := groups.Create(ctx, k.neutron, groups.CreateOpts{Name: kuryrName}).Extract()
	k.must(err)
	k.group = group.ID
	k.cleanup("the security group", func(ctx context.Context) error { return groups.Delete(ctx, k.neutron, k.group).ExtractErr() })
}

// addNetwork makes a network with one subnet of its name.
func (k *kuryrLeft) addNetwork(name, prefix string) (network, subnet string) {
	k.Helper()
	n, err := networks.Create(k.Context(), k.neutron, networks.CreateOpts{Name: name}).Extract()
	k.must(err)
	k.cleanup("network "+name, func(ctx context.Context) error { return networks.Delete(ctx, k.neutron, n.ID).ExtractErr() })
	s, err := subnets.Create(k.Context(), k.neutron, subnets.CreateOpts{NetworkID: n.ID, Name: name, CIDR: prefix, IPVersion: gophercloud.IPv4}).Extract()
	k.must(err)
	return n.ID, s.ID
}

// addPort makes a port of an owner.
func (k *kuryrLeft) addPort(network, owner string) string {
	k.Helper()
	p, err := ports.Create(k.Context(), k.neutron, ports.CreateOpts{NetworkID: network, Name: kuryrName, DeviceOwner: owner}).Extract()
	k.must(err)
	k.cleanup("port "+p.ID, func(ctx context.Context) error { return ports.Delete(ctx, k.neutron, p.ID).ExtractErr() })
	return p.ID
}
