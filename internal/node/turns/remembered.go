package turns

// Remembered is how many things are remembered, by kind. Tombstones are of
// sandboxes that are gone, for ten minutes, and go with later DELs.
func (m *Turns) Remembered() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return map[string]int{"turns": len(m.queues), "adds": len(m.adds), "tombstones": len(m.buried)}
}
