package turns

// Remembered returns the number of entries in memory, by kind. Tombstones older than ten
// minutes are removed at the next DEL.
func (m *Turns) Remembered() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return map[string]int{"turns": len(m.queues), "adds": len(m.adds), "tombstones": len(m.dead)}
}
