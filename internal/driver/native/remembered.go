package native

// Remembered is how many tenants have something under way at a pool with a quota.
func (d *Driver) Remembered() map[string]int {
	d.quotas.mu.Lock()
	defer d.quotas.mu.Unlock()
	return map[string]int{"quota_gates": len(d.quotas.m)}
}

// Remembered is how many pools and reservations are known.
func (p *Pools) Remembered() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return map[string]int{"pools": len(p.m), "reservations": len(p.reservations)}
}
