package plug

import (
	"context"
	"fmt"
	"slices"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/ovsdb"
)

// External IDs of the row of an interface. The first three are Neutron's and OVN's, the
// others are Fairlead's.
const (
	ovsIfaceID   = "iface-id"
	ovsMAC       = "attached-mac"
	ovsStatus    = "iface-status"
	ovsOwner     = "fairlead"
	ovsContainer = "fairlead-container"
	ovsIfName    = "fairlead-interface"
	ovsIsShut    = "fairlead-shut"
)

// ovsSwitch is the state of Open vSwitch, as far as an interface concerns it.
type ovsSwitch struct {
	// bridge is true if the bridge of the interface exists. userspace is true if
	// ovs-vswitchd forwards its packets, and offloads if it then completes their checksums.
	bridge, userspace, offloads bool
	// rows are those of Fairlead, of the interface's host end and of its port in Neutron.
	rows []*ovsRow
}

// ovsRow is the row of an interface in Open vSwitch, with the port that it belongs to.
type ovsRow struct {
	name, bridge, uuid  string // uuid of the port
	owner               string
	containerID, ifname string
	port                OVSPort
	shut                bool
	fault               string // why ovs-vswitchd cannot use the interface
}

// ours reports whether a row is Fairlead's, and complete. A row that is nil is not.
func (r *ovsRow) ours() bool {
	return r != nil && r.owner != "" && r.name == HostName(r.containerID, r.ifname)
}

// is reports whether a row is that of an interface.
func (r *ovsRow) is(m Made) bool {
	return r.ours() && r.bridge == m.Bridge && r.port == *m.OVS
}

// row returns the row of a host end, nil if there is none.
func (s *ovsSwitch) row(name string) *ovsRow {
	n := slices.IndexFunc(s.rows, func(r *ovsRow) bool { return r.name == name })
	if n < 0 {
		return nil
	}
	return s.rows[n]
}

// holders returns the rows of other interfaces with the port of an interface.
func (s *ovsSwitch) holders(m Made) (rows []*ovsRow) {
	for _, r := range s.rows {
		if r.name != m.HostLink && r.port.PortID == m.OVS.PortID {
			rows = append(rows, r)
		}
	}
	return rows
}

// accepts returns nil if an interface can become a port. Another sandbox of Fairlead with
// the same port in Neutron is an earlier one of the pod, which loses the port. Errors:
// link.ErrNoParent if the bridge is missing, link.ErrExists if another program has the port
// or the name.
func (s *ovsSwitch) accepts(m Made) error {
	if !s.bridge {
		return fmt.Errorf("%w: bridge %s in Open vSwitch; OVN or Neutron's agent makes it, or ovs-vsctl add-br %[2]s", link.ErrNoParent, m.Bridge)
	}
	for _, r := range s.holders(m) {
		if !r.ours() {
			return fmt.Errorf("%w: port %s of Neutron is interface %s of bridge %q, which another program has made; ovs-vsctl del-port %[3]s removes it if nothing uses it", link.ErrExists, m.OVS.PortID, r.name, r.bridge)
		}
	}
	if r := s.row(m.HostLink); r != nil && !r.ours() {
		return fmt.Errorf("%w: %s in Open vSwitch, which another program has made", link.ErrExists, m.HostLink)
	}
	return nil
}

// differences describes how the row of an interface differs from Made.
func (s *ovsSwitch) differences(m Made) (diffs []string) {
	add := func(format string, args ...any) { diffs = append(diffs, fmt.Sprintf(format, args...)) }
	if !s.bridge {
		add("bridge %s of %s is missing in Open vSwitch", m.Bridge, m.Name)
	}
	r := s.row(m.HostLink)
	if !r.ours() {
		add("host end %s of %s is no port of Open vSwitch", m.HostLink, m.Name)
		return diffs
	}
	if r.bridge != m.Bridge {
		add("host end %s of %s is a port of %q, not of bridge %s", m.HostLink, m.Name, r.bridge, m.Bridge)
	}
	if r.port != *m.OVS {
		add("host end %s of %s is port %q of Neutron with MAC %q, not %q with %q", m.HostLink, m.Name, r.port.PortID, r.port.MAC, m.OVS.PortID, m.OVS.MAC)
	}
	if r.fault != "" {
		add("Open vSwitch cannot use host end %s of %s: %s", m.HostLink, m.Name, r.fault)
	}
	return diffs
}

// readSwitch reads the state of Open vSwitch, for an interface, or for all of Fairlead if
// Made is zero.
func (o *ovs) readSwitch(ctx context.Context, m Made) (*ovsSwitch, error) {
	columns := []string{"_uuid", "name", "external_ids", "error"}
	ops := []ovsdb.Operation{
		ovsdb.Select("Bridge", []string{"name", "datapath_type", "ports"}),
		ovsdb.Select("Port", []string{"_uuid", "interfaces"}),
		ovsdb.Select("Open_vSwitch", []string{"other_config"}),
	}
	if m.HostLink == "" {
		ops = append(ops, ovsdb.Select("Interface", columns, includesID(ovsOwner, "true")))
	} else {
		ops = append(ops, ovsdb.Select("Interface", columns, ovsdb.Is("name", m.HostLink)))
	}
	if m.OVS != nil {
		ops = append(ops, ovsdb.Select("Interface", columns, includesID(ovsIfaceID, m.OVS.PortID)))
	}
	results, err := o.db.Transact(ctx, ops...)
	if err != nil {
		return nil, err
	}
	sw := &ovsSwitch{}
	bridgeOf := map[string]string{} // by the port's UUID
	for _, b := range results[0].Rows {
		name := b["name"].Text()
		if name == m.Bridge {
			sw.bridge, sw.userspace = true, b["datapath_type"].Text() == "netdev"
		}
		for _, port := range b["ports"].Elements {
			bridgeOf[port] = name
		}
	}
	portOf := map[string]string{} // by the interface's UUID
	for _, p := range results[1].Rows {
		for _, i := range p["interfaces"].Elements {
			portOf[i] = p["_uuid"].Text()
		}
	}
	for _, r := range results[2].Rows {
		sw.offloads = r["other_config"].Pairs["userspace-tso-enable"] == "true"
	}
	for _, result := range results[3:] {
		for _, i := range result.Rows {
			if name := i["name"].Text(); sw.row(name) == nil {
				port := portOf[i["_uuid"].Text()]
				sw.rows = append(sw.rows, newOVSRow(i, port, bridgeOf[port]))
			}
		}
	}
	return sw, nil
}

func newOVSRow(i ovsdb.Row, port, bridge string) *ovsRow {
	ids := i["external_ids"].Pairs
	return &ovsRow{
		name: i["name"].Text(), bridge: bridge, uuid: port, owner: ids[ovsOwner],
		containerID: ids[ovsContainer], ifname: ids[ovsIfName],
		port: OVSPort{PortID: ids[ovsIfaceID], MAC: ids[ovsMAC]},
		shut: ids[ovsIsShut] != "", fault: i["error"].Text(),
	}
}

func includesID(key, value string) ovsdb.Condition {
	return ovsdb.Includes("external_ids", ovsdb.Map(map[string]string{key: value}))
}

// putRow writes the row of an interface, in one transaction with the removal of rows that
// it replaces: its own of an earlier attempt, and those of earlier sandboxes with its port.
// Errors: ovsdb.ErrRefused if another program takes the port at the same time,
// link.ErrNoParent if the bridge is missing, otherwise those of Transact.
func (o *ovs) putRow(ctx context.Context, sw *ovsSwitch, m Made) error {
	ids := map[string]string{
		ovsIfaceID: m.OVS.PortID, ovsMAC: m.OVS.MAC, ovsStatus: "active",
		ovsOwner: "true", ovsContainer: m.ContainerID, ovsIfName: m.Name,
	}
	if sw.userspace {
		ids[ovsIsShut] = "true"
	}
	var seen []string
	var replaced []any
	for _, r := range sw.rows {
		if r.port.PortID == m.OVS.PortID {
			seen = append(seen, r.name)
		}
		if r.uuid != "" {
			replaced = append(replaced, ovsdb.UUID(r.uuid))
		}
	}
	results, err := o.db.Transact(ctx,
		ovsdb.Unless("Interface", "name", seen, includesID(ovsIfaceID, m.OVS.PortID)),
		ovsdb.Mutate("Bridge", "ports", "delete", ovsdb.Set(replaced...)),
		ovsdb.Insert("Interface", "interface", map[string]any{"name": m.HostLink, "external_ids": ovsdb.Map(ids)}),
		ovsdb.Insert("Port", "port", map[string]any{"name": m.HostLink, "interfaces": ovsdb.Named("interface")}),
		ovsdb.Mutate("Bridge", "ports", "insert", ovsdb.Named("port"), ovsdb.Is("name", m.Bridge)),
		ovsdb.Comment(fmt.Sprintf("fairlead: plugged %s of container %s", m.Name, m.ContainerID)),
	)
	if err == nil && results[4].Count == 0 {
		err = fmt.Errorf("%w: bridge %s in Open vSwitch was removed meanwhile", link.ErrNoParent, m.Bridge)
	}
	return err
}

// awaitRelease waits until ovs-vswitchd has let go of the links whose rows are removed. It would go
// on with a link that is gone in place of the next one of the same name.
func (o *ovs) awaitRelease(ctx context.Context) error {
	results, err := o.db.Transact(ctx,
		ovsdb.Mutate("Open_vSwitch", "next_cfg", "+=", 1),
		ovsdb.Select("Open_vSwitch", []string{"next_cfg"}),
	)
	if err != nil {
		return err
	}
	for _, r := range results[1].Rows {
		if _, err := o.db.Transact(ctx, ovsdb.Await("Open_vSwitch", "cur_cfg", r["next_cfg"].Text())); err != nil {
			return fmt.Errorf("waiting for ovs-vswitchd: %w", err)
		}
	}
	return nil
}

// dropRow removes a row. Its port takes the interface along.
func (o *ovs) dropRow(ctx context.Context, r *ovsRow) error {
	_, err := o.db.Transact(ctx,
		ovsdb.Mutate("Bridge", "ports", "delete", ovsdb.Set(ovsdb.UUID(r.uuid))),
		ovsdb.Comment(fmt.Sprintf("fairlead: unplugged %s of container %s", r.ifname, r.containerID)),
	)
	return err
}
