package nft

import (
	"cmp"
	"slices"
)

// wanted holds the wanted elements and their owners. Two sandboxes may want the same
// element for a while, as when one succeeds the other.
type wanted struct {
	claims map[place][]claim // the first claim applies
	owners map[string]elements
	dirty  map[place]struct{} // changed since the last call of all or differences
}

type claim struct{ owner, value string }

func newWanted() wanted {
	return wanted{claims: map[place][]claim{}, owners: map[string]elements{}, dirty: map[place]struct{}{}}
}

// set replaces the elements of an owner. It reports whether they changed.
func (w *wanted) set(owner string, now elements) bool {
	changed := false
	before := w.owners[owner]
	for p, value := range before {
		if v, ok := now[p]; !ok || v != value {
			w.withdraw(owner, p)
			changed = true
		}
	}
	for p, value := range now {
		if v, ok := before[p]; !ok || v != value {
			w.claims[p] = append(w.claims[p], claim{owner, value})
			w.dirty[p] = struct{}{}
			changed = true
		}
	}
	if len(now) == 0 {
		delete(w.owners, owner)
	} else {
		w.owners[owner] = now
	}
	return changed
}

func (w *wanted) withdraw(owner string, p place) {
	left := slices.DeleteFunc(w.claims[p], func(c claim) bool { return c.owner == owner })
	if len(left) == 0 {
		delete(w.claims, p)
	} else {
		w.claims[p] = left
	}
	w.dirty[p] = struct{}{}
}

// all returns all wanted elements, in order.
func (w *wanted) all() []Element {
	clear(w.dirty)
	out := make([]Element, 0, len(w.claims))
	for p, c := range w.claims {
		out = append(out, element(p, c[0].value))
	}
	return inOrder(out)
}

// differences returns the elements to delete and to add, among those that changed since
// the last call, in order.
func (w *wanted) differences(have elements) (del, add []Element) {
	for p := range w.dirty {
		value, there := have[p]
		claims := w.claims[p]
		if len(claims) > 0 && there && claims[0].value == value {
			continue
		}
		if there {
			del = append(del, element(p, value))
		}
		if len(claims) > 0 {
			add = append(add, element(p, claims[0].value))
		}
	}
	clear(w.dirty)
	return inOrder(del), inOrder(add)
}

func element(p place, value string) Element {
	return Element{Family: p.family, Set: p.set, Key: p.key, Value: value}
}

func (e Element) place() place { return place{e.Family, e.Set, e.Key} }

func inOrder(e []Element) []Element {
	slices.SortFunc(e, func(a, b Element) int {
		return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Set, b.Set), cmp.Compare(a.Key, b.Key))
	})
	return e
}
