package node

// status says whether an ADD can be served.
func (v *verbs) status() error {
	if !v.registry.isSynced() {
		return because(errUnavailable, "node %s has not read its PodAttachments from the API server yet", v.node)
	}
	if err := v.host.ready(); err != nil {
		return because(errUnavailable, "node %s: %w", v.node, err)
	}
	return nil
}
