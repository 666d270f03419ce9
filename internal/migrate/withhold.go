package migrate

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
)

// maxRanges is the number of ranges that an IPReservation may have.
const maxRanges = 64

// makeWithheld plans IPReservations for the addresses to withhold: people can see and
// delete them, and no allocation takes their addresses. An address needs none if another
// IPReservation withholds it or Fairlead has allocated it.
func (p *planner) makeWithheld() {
	withheld := map[string][]*ipam.Reservation{}
	there := map[string]v1alpha1.IPReservation{}
	for _, r := range p.Withheld {
		if r.Labels[v1alpha1.LabelMigratedFrom] == System {
			there[r.Name] = r
			continue
		}
		parsed, _ := ipam.ParseReservation(r.Spec.Domain, r.Spec.Ranges)
		withheld[parsed.Domain()] = append(withheld[parsed.Domain()], parsed)
	}
	byDomain := map[string][]netip.Addr{}
	for at := range p.held {
		p.plan.Held++
		if s, ok := p.slot(at); ok && s.State == ipam.Taken {
			continue
		}
		if !slices.ContainsFunc(withheld[at.Domain], func(r *ipam.Reservation) bool { return r.Contains(at.Addr) }) {
			byDomain[at.Domain] = append(byDomain[at.Domain], at.Addr)
		}
	}
	for _, domain := range slices.Sorted(maps.Keys(byDomain)) {
		n := 0
		for ranges := range slices.Chunk(rangesOf(byDomain[domain]), maxRanges) {
			n++
			want := v1alpha1.IPReservation{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("whereabouts-%s-%d", domain, n), Labels: map[string]string{v1alpha1.LabelMigratedFrom: System}},
				Spec: v1alpha1.IPReservationSpec{
					Domain: domain, Ranges: ranges,
					Reason: "recorded by whereabouts and not explained by a running pod: see `fairlead migrate whereabouts --dry-run`",
				},
			}
			has, ok := there[want.Name]
			delete(there, want.Name)
			if !ok || has.Spec.Domain != domain || !slices.Equal(has.Spec.Ranges, ranges) {
				p.plan.Withhold = append(p.plan.Withhold, want)
			}
		}
	}
	p.plan.Release = slices.Sorted(maps.Keys(there))
}

// rangesOf formats addresses as single addresses and first-last ranges.
func rangesOf(addrs []netip.Addr) []string {
	slices.SortFunc(addrs, netip.Addr.Compare)
	var out []string
	for i := 0; i < len(addrs); {
		last := i
		for last+1 < len(addrs) && addrs[last].Next() == addrs[last+1] {
			last++
		}
		text := addrs[i].String()
		if last > i {
			text += "-" + addrs[last].String()
		}
		out, i = append(out, text), last+1
	}
	return out
}
