package block

// Remembered returns how many entries the store has in memory, by kind.
func (s *Store) Remembered() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return map[string]int{
		"blocks": len(s.blocks), "nodes_with_blocks": len(s.byNode), "holders": len(s.leases), "claims": len(s.claims), "tenants": len(s.tenants),
		"doubts": len(s.doubts), "places": len(s.last), "cooldowns": len(s.cooldowns), "buried": len(s.buried), "unread": len(s.pending),
		"turns": s.owners.size(),
	}
}

func (o *owners) size() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.m)
}
