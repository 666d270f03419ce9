package network

// Remembered is how many things the manager remembers, by kind. Tombstones are of
// sandboxes that are gone, for ten minutes, and go with later DELs.
func (m *Manager) Remembered() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return map[string]int{"turns": len(m.turns), "adds": len(m.adds), "tombstones": len(m.buried)}
}
