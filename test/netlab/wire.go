package netlab

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// Wire is a further network of the nodes: links on each node, joined on a bridge of the
// switch. No machine has an address there.
type Wire struct {
	// Name of the wire: at most 8 characters.
	Name string
	// Bridge is a bridge on each node that the wire ends in; empty for none.
	Bridge string
	// Links are the names of the links on each node that the wire ends in.
	Links []string
}

// ends are the names of the links on each node. The bridge's port is the first.
func (w Wire) ends() []string {
	if w.Bridge == "" {
		return w.Links
	}
	return append([]string{w.Name + "-port"}, w.Links...)
}

// center is the name of the wire's bridge in the switch, and the prefix of its ports.
func (w Wire) center() string { return PortPrefix + w.Name }

// Connect adds a wire to the laboratory, with links that are up.
func (l *Lab) Connect(w Wire) error {
	handle, err := l.Switch.Netlink()
	if err != nil {
		return err
	}
	defer handle.Close()
	center, err := addBridge(handle, w.center())
	if err != nil {
		return fmt.Errorf("wire %s: %w", w.Name, err)
	}
	for i, node := range l.Nodes {
		for k, name := range w.ends() {
			port := &netlink.Veth{
				LinkAttrs:     netlink.LinkAttrs{Name: fmt.Sprintf("%s%d%d", w.center(), k, i+1), MasterIndex: center},
				PeerName:      name,
				PeerNamespace: netlink.NsFd(int(node.file.Fd())),
			}
			if err := errors.Join(handle.LinkAdd(port), handle.LinkSetUp(port)); err != nil {
				return fmt.Errorf("wire %s: link %s of %s: %w", w.Name, name, node.Name, err)
			}
		}
		if err := node.end(w); err != nil {
			return fmt.Errorf("wire %s: %s: %w", w.Name, node.Name, err)
		}
	}
	return nil
}

// end sets the links of a wire on a node up, and makes its bridge.
func (m *Machine) end(w Wire) error {
	handle, err := m.Netlink()
	if err != nil {
		return err
	}
	defer handle.Close()
	for _, name := range w.ends() {
		link, err := handle.LinkByName(name)
		if err == nil {
			err = handle.LinkSetUp(link)
		}
		if err != nil {
			return fmt.Errorf("link %s: %w", name, err)
		}
	}
	if w.Bridge == "" {
		return nil
	}
	bridge, err := addBridge(handle, w.Bridge)
	if err != nil {
		return err
	}
	port, err := handle.LinkByName(w.ends()[0])
	if err != nil {
		return err
	}
	return handle.LinkSetMasterByIndex(port, bridge)
}

// Disconnect removes a wire. It returns an error if one of its links is missing: another
// program has removed or renamed it.
func (l *Lab) Disconnect(w Wire) error {
	handle, err := l.Switch.Netlink()
	if err != nil {
		return err
	}
	defer handle.Close()
	var errs []error
	for _, node := range l.Nodes {
		errs = append(errs, node.unwire(w))
	}
	for i := range l.Nodes {
		for k := range w.ends() {
			errs = append(errs, removeLink(handle, fmt.Sprintf("%s%d%d", w.center(), k, i+1)))
		}
	}
	return errors.Join(append(errs, removeLink(handle, w.center()))...)
}

// unwire checks that a node has the links of a wire, and removes its bridge.
func (m *Machine) unwire(w Wire) error {
	handle, err := m.Netlink()
	if err != nil {
		return err
	}
	defer handle.Close()
	var errs []error
	for _, name := range w.ends() {
		if _, err := handle.LinkByName(name); err != nil {
			errs = append(errs, fmt.Errorf("link %s of %s: %w", name, m.Name, err))
		}
	}
	if w.Bridge != "" {
		errs = append(errs, removeLink(handle, w.Bridge))
	}
	return errors.Join(errs...)
}

// addBridge makes a bridge that is up, and returns its index.
func addBridge(handle *netlink.Handle, name string) (int, error) {
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
	if err := errors.Join(handle.LinkAdd(bridge), handle.LinkSetUp(bridge)); err != nil {
		return 0, fmt.Errorf("bridge %s: %w", name, err)
	}
	return bridge.Attrs().Index, nil
}
