package node

import "maps"

// Remembered is how many things the daemon remembers, by kind. What was said in events
// is remembered until later ones are.
func (d *Daemon) Remembered() map[string]int {
	all := d.manager.Remembered()
	if v := d.verbs; v != nil {
		maps.Copy(all, v.registry.remembered())
		maps.Copy(all, v.ledger.remembered())
		maps.Copy(all, v.reporter.remembered())
	}
	return all
}

func (r *registry) remembered() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return map[string]int{"attachments": len(r.objects), "pods": len(r.pods), "subscribers": len(r.waiting)}
}

func (l *ledger) remembered() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return map[string]int{
		"sandboxes": len(l.records), "holders": len(l.holders), "sealed": len(l.sealed), "ended": len(l.ended), "heirs": len(l.heirs),
		"addresses": len(l.book.m), "damaged": len(l.book.damaged),
	}
}

func (r *reporter) remembered() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return map[string]int{"said": len(r.said)}
}
