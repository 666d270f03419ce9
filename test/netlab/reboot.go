package netlab

import "fmt"

// Reboot gives the i-th node, counted from 0, a new network namespace with a new link to
// the switch and the same addresses, as after a reboot of a machine. The node's Machine
// stays the same, so all its users get the new namespace. Its processes should have
// ended.
func (l *Lab) Reboot(i int) error {
	handle, err := l.Switch.Netlink()
	if err != nil {
		return err
	}
	defer handle.Close()
	if err := removeLink(handle, portName(i)); err != nil {
		return fmt.Errorf("lab node %d: %w", i+1, err)
	}
	node := l.Nodes[i]
	if err := node.Close(); err != nil {
		return fmt.Errorf("lab node %d: %w", i+1, err)
	}
	if node.Namespace, err = NewNamespace(); err != nil {
		return fmt.Errorf("lab node %d: %w", i+1, err)
	}
	return l.plugNode(node, i)
}
