package controller

// Remembered is how many things the reconciler remembers, by kind.
func (r *Attachments) Remembered() map[string]int {
	creations, records := r.marks.sizes()
	return map[string]int{
		"creations": creations, "releases": records,
		"pods_with_records": r.names.size(), "waiting_pods": r.waiting.size(),
		"pods_without_node": r.strangers.size(), "unreachable_nodes": r.silences.size(),
	}
}

func (s *marks) sizes() (creations, records int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.creations), len(s.records)
}

func (s *strangers) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.m)
}

func (s *silences) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.m)
}

func (n *names) size() int {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return len(n.m)
}

func (w *waiting) size() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.m)
}
