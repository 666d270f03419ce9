// Package plugtest has the tests that every kind of binding passes, in network namespaces
// that stand for the node and its pods.
package plugtest

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/test/nettest"
)

// Case is a kind of binding with the parameters of its tests.
type Case struct {
	// New returns the kind on a host, as a starting daemon does.
	New func(s *link.Sockets) plug.Kind
	// Host makes on a host, beside the bridge nettest.DefaultBridge, the links that the
	// interface needs; nil makes none.
	Host func(tb testing.TB, s *link.Sockets)
	// Interface can be made on such a host.
	Interface plug.Interface
	// StandIns are links of the host that end with the namespace. They stand for devices,
	// which the kernel returns to the host.
	StandIns []string
	// Foreign is true if another plugin makes the interface: Make and Remove do nothing.
	Foreign bool
	// HostLink is true if the interface has a link on the host.
	HostLink bool
	// Invalid are interfaces that the kind refuses, by a part of the error text.
	Invalid map[string]plug.Interface
	// Breaks are changes on the host's side of an interface.
	Breaks []Break
	// Leave makes the objects that a Make leaves on a host and in a namespace if it is
	// killed halfway; nil leaves a whole interface.
	Leave func(tb testing.TB, s *link.Sockets, ns *link.Namespace, i plug.Interface)
}

// Break is a change on the host's side of an interface.
type Break struct {
	Name string
	Do   func(host *netlink.Handle, m plug.Made) error
	// Difference is a part of the difference that the kind returns.
	Difference string
	// Repairs is true if the kind can repair the change.
	Repairs bool
}

// Run runs all tests of a kind.
func Run(t *testing.T, c Case) {
	t.Helper()
	t.Run("Validate", c.validate)
	t.Run("Made", c.made)
	t.Run("Gone", c.gone)
	t.Run("Breaks", c.breaks)
	t.Run("Leftover", c.leftover)
	t.Run("Unknown", c.unknown)
	if !c.Foreign {
		t.Run("NameIsTaken", c.nameIsTaken)
		t.Run("Cancelled", c.cancelled)
	}
	if c.HostLink {
		t.Run("Found", c.found)
		t.Run("ShaperAlone", c.shaperAlone)
	}
}

// testHost is a host and a pod.
type testHost struct {
	host *link.Sockets
	pod  *link.Namespace
	kind plug.Kind
	// hostLinks and podLinks are the links of host and pod before anything was made.
	hostLinks, podLinks []string
}

func (c *Case) newHost(t *testing.T) *testHost {
	t.Helper()
	w := &testHost{host: nettest.NewHost(t), pod: nettest.NewNamespace(t)}
	if c.Host != nil {
		c.Host(t, w.host)
	}
	w.kind = c.New(w.host)
	w.hostLinks, w.podLinks = nettest.LinkNames(t, w.host.Namespace()), nettest.LinkNames(t, w.pod)
	return w
}

// make makes the interface and returns its Made as a later daemon reads it.
func (w *testHost) make(t *testing.T, c *Case) plug.Made {
	t.Helper()
	planned := w.kind.Plan(w.pod.Place(), c.Interface)
	raw, err := json.Marshal(planned)
	if err != nil {
		t.Fatal(err)
	}
	var m plug.Made
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(planned, m); diff != "" {
		t.Errorf("Made after a restart (-before +after):\n%s", diff)
	}
	w.unmade(t, "Plan")
	if err := w.kind.Make(t.Context(), w.pod, c.Interface); err != nil {
		t.Fatalf("Make: %v", err)
	}
	w.kind = c.New(w.host) // the new one does not know the interface
	return m
}

// unmade asserts that host and pod have no other links than at the beginning.
func (w *testHost) unmade(t *testing.T, after string) {
	t.Helper()
	if diff := cmp.Diff(w.hostLinks, nettest.LinkNames(t, w.host.Namespace())); diff != "" {
		t.Errorf("links of the host after %s (-before +after):\n%s", after, diff)
	}
	if diff := cmp.Diff(w.podLinks, nettest.LinkNames(t, w.pod)); diff != "" {
		t.Errorf("links of the pod after %s (-before +after):\n%s", after, diff)
	}
}

// inside inspects the interface in the pod.
func (w *testHost) inside(t *testing.T, name string) (plug.Inspected, bool) {
	t.Helper()
	all, err := plug.Namespaces{}.Inspect(t.Context(), w.pod)
	if err != nil {
		t.Fatal(err)
	}
	i, ok := all[name]
	return i, ok
}

func (w *testHost) differences(t *testing.T, m plug.Made) []string {
	t.Helper()
	inside, _ := w.inside(t, m.Name)
	diffs, err := w.kind.Differences(t.Context(), m, inside)
	if err != nil {
		t.Fatalf("Differences: %v", err)
	}
	return diffs
}

func (w *testHost) isGone(t *testing.T, m plug.Made, when string, want bool) {
	t.Helper()
	if gone, err := w.kind.Gone(t.Context(), m); err != nil || gone != want {
		t.Errorf("%s: gone is %t, %v; want %t", when, gone, err, want)
	}
}

// remove removes twice, as a retry does.
func (w *testHost) remove(t *testing.T, m plug.Made) {
	t.Helper()
	for _, time := range []string{"Remove", "the second Remove"} {
		if err := w.kind.Remove(t.Context(), m); err != nil {
			t.Errorf("%s: %v", time, err)
		}
	}
}

// end ends the pod's namespace as a runtime does.
func (w *testHost) end(t *testing.T) {
	t.Helper()
	if err := w.pod.Close(); err != nil {
		t.Fatal(err)
	}
	nettest.DropPath(t, w.pod.Path())
	if err := os.Remove(w.pod.Path()); err != nil {
		t.Fatal(err)
	}
}

// onRemoval returns a function that waits until the kernel has removed the last of some
// links of the host.
func (w *testHost) onRemoval(t *testing.T, names []string) (wait func()) {
	t.Helper()
	events, done := make(chan netlink.LinkUpdate, 64), make(chan struct{})
	at := netns.NsHandle(w.host.Namespace().FD())
	if err := netlink.LinkSubscribeWithOptions(events, done, netlink.LinkSubscribeOptions{Namespace: &at}); err != nil {
		t.Fatal(err)
	}
	there := nettest.LinkNames(t, w.host.Namespace())
	left := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !slices.Contains(there, name) })
	return func() {
		defer close(done)
		for len(left) > 0 {
			e := <-events
			left = slices.DeleteFunc(left, func(name string) bool { return e.Header.Type == unix.RTM_DELLINK && e.Attrs().Name == name })
		}
	}
}

func (c *Case) validate(t *testing.T) {
	w := c.newHost(t)
	if err := w.kind.Validate(c.Interface); err != nil {
		t.Errorf("valid interface: %v", err)
	}
	for says, i := range c.Invalid {
		if err := w.kind.Validate(i); !errors.Is(err, link.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want ErrInvalid with %q", err, says)
		}
		if err := w.kind.Make(t.Context(), w.pod, i); !errors.Is(err, link.ErrInvalid) {
			t.Errorf("Make: %v, want ErrInvalid with %q", err, says)
		}
		w.unmade(t, "a refusal")
	}
}

func (c *Case) made(t *testing.T) {
	w := c.newHost(t)
	m := w.make(t, c)
	if m.ContainerID != c.Interface.ContainerID || m.Name != c.Interface.Name || m.Namespace != w.pod.Place() || m.Kind == "" {
		t.Errorf("%+v does not name the interface", m)
	}
	hostLinks := nettest.LinkNames(t, w.host.Namespace())
	if c.HostLink != (m.HostLink != "") || c.HostLink && !slices.Contains(hostLinks, m.HostLink) {
		t.Errorf("link %q of the host, which has %v", m.HostLink, hostLinks)
	}
	if inside, ok := w.inside(t, m.Name); !c.Foreign {
		if !ok || !inside.Up || inside.MTU != c.Interface.MTU {
			t.Errorf("interface %+v, %t", inside, ok)
		}
		for _, a := range c.Interface.Addresses {
			if !slices.Contains(inside.Addresses, a) {
				t.Errorf("interface lacks address %v: %v", a, inside.Addresses)
			}
		}
	}
	if diffs := w.differences(t, m); len(diffs) > 0 {
		t.Errorf("differs when it is made: %q", diffs)
	}
	w.isGone(t, m, "made", false)
	w.remove(t, m)
	w.unmade(t, "Remove")
	if err := w.kind.Make(t.Context(), w.pod, c.Interface); err != nil {
		t.Errorf("Make after Remove: %v", err)
	}
	w.remove(t, m)
	w.unmade(t, "the last Remove")
}

// gone: the namespace ends without a Remove.
func (c *Case) gone(t *testing.T) {
	w := c.newHost(t)
	m := w.make(t, c)
	hidden := m
	hidden.Namespace.Path += "/none/of/it"
	if !c.Foreign && c.HostLink {
		w.isGone(t, hidden, "the namespace is hidden", false)
	}
	replaced := m
	replaced.Namespace = nettest.NewNamespace(t).Place()
	replaced.Namespace.ID.Inode++ // of no namespace
	w.isGone(t, replaced, "another namespace is in its place", true)
	ended := w.onRemoval(t, c.StandIns)
	w.end(t)
	w.isGone(t, m, "the namespace has ended", true)
	ended()
	w.remove(t, m)
	w.isGone(t, m, "removed", true)
	want := slices.DeleteFunc(w.hostLinks, func(name string) bool { return slices.Contains(c.StandIns, name) })
	if diff := cmp.Diff(want, nettest.LinkNames(t, w.host.Namespace())); diff != "" {
		t.Errorf("links of the host after all (-before +after):\n%s", diff)
	}
}

func (c *Case) breaks(t *testing.T) {
	for _, b := range c.Breaks {
		t.Run(b.Name, func(t *testing.T) {
			w := c.newHost(t)
			m := w.make(t, c)
			if err := b.Do(nettest.OpenHandle(t, w.host.Namespace()), m); err != nil {
				t.Fatal(err)
			}
			diffs := w.differences(t, m)
			if !slices.ContainsFunc(diffs, func(d string) bool { return strings.Contains(d, b.Difference) && strings.Contains(d, m.Name) }) {
				t.Errorf("differences %q, want one of %s with %q", diffs, m.Name, b.Difference)
			}
			w.repair(t, m, b.Repairs)
			w.remove(t, m)
		})
	}
}

// repair repairs the host's side where that is possible.
func (w *testHost) repair(t *testing.T, m plug.Made, want bool) {
	t.Helper()
	repairer, ok := w.kind.(plug.Repairer)
	if !ok {
		if want {
			t.Error("the kind repairs nothing")
		}
		return
	}
	repaired, err := repairer.Repair(t.Context(), m)
	if repaired != want || want && err != nil {
		t.Errorf("Repair: %t, %v; want %t", repaired, err, want)
	}
	if !want {
		return
	}
	if diffs := w.differences(t, m); len(diffs) > 0 {
		t.Errorf("repaired, it differs: %q", diffs)
	}
	if repaired, err := repairer.Repair(t.Context(), m); err != nil || repaired {
		t.Errorf("Repair when all is well: %t, %v", repaired, err)
	}
	w.isGone(t, m, "repaired", false)
}

// leftover: a daemon was killed in Make, or after it.
func (c *Case) leftover(t *testing.T) {
	for _, when := range []string{"in the middle", "at the end"} {
		t.Run(when, func(t *testing.T) {
			w := c.newHost(t)
			if when == "in the middle" && c.Leave != nil {
				c.Leave(t, w.host, w.pod, c.Interface)
			} else if err := w.kind.Make(t.Context(), w.pod, c.Interface); err != nil {
				t.Fatal(err)
			}
			kind := c.New(w.host)
			m := kind.Plan(w.pod.Place(), c.Interface)
			if err := kind.Make(t.Context(), w.pod, c.Interface); err != nil {
				t.Fatalf("Make over what was left: %v", err)
			}
			if diffs := w.differences(t, m); len(diffs) > 0 {
				t.Errorf("made again, it differs: %q", diffs)
			}
			w.remove(t, m)
			w.unmade(t, "Remove")
			if c.Leave != nil { // the runtime does not repeat its ADD
				c.Leave(t, w.host, w.pod, c.Interface)
				w.remove(t, m)
				w.unmade(t, "Remove of what was left")
			}
		})
	}
}

// nameIsTaken: another program made the interface.
func (c *Case) nameIsTaken(t *testing.T) {
	w := c.newHost(t)
	nettest.AddBridge(t, w.pod, c.Interface.Name, 1500)
	w.podLinks = nettest.LinkNames(t, w.pod)
	if err := w.kind.Make(t.Context(), w.pod, c.Interface); !errors.Is(err, link.ErrExists) {
		t.Errorf("Make: %v, want ErrExists", err)
	}
	w.unmade(t, "Make")
	w.remove(t, w.kind.Plan(w.pod.Place(), c.Interface))
	w.unmade(t, "Remove")
}

func (c *Case) cancelled(t *testing.T) {
	w := c.newHost(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.kind.Make(ctx, w.pod, c.Interface); !errors.Is(err, context.Canceled) {
		t.Errorf("Make: %v, want Canceled", err)
	}
	w.unmade(t, "Make")
}

// shaperAlone: a shaper that is left without its host end does not stand for it.
func (c *Case) shaperAlone(t *testing.T) {
	w := c.newHost(t)
	i := Changed(c.Interface, func(i *plug.Interface) {
		i.Bandwidth = &plug.Bandwidth{IngressRate: 1e7, IngressBurst: 1e6, EgressRate: 1e7, EgressBurst: 1e6}
	})
	err := w.kind.Make(t.Context(), w.pod, i)
	if errors.Is(err, link.ErrInvalid) {
		return // the kind has no limits
	}
	nettest.Must(t, err)
	m := w.kind.Plan(w.pod.Place(), i)
	h := nettest.OpenHandle(t, w.host.Namespace())
	nettest.Must(t, h.LinkDel(nettest.LinkNamed(t, w.host.Namespace(), m.HostLink)))
	all, err := h.LinkList()
	nettest.Must(t, err)
	found := w.kind.(plug.Finder).Find(t.Context(), all)
	if len(found) != 1 || !found[0].Shaper || found[0].HostLink != m.HostLink {
		t.Errorf("found %+v, want the shaper of %s", found, m.HostLink)
	}
	if gone, err := w.kind.Gone(t.Context(), m); !gone || err != nil {
		t.Errorf("gone: %v, %v", gone, err)
	}
	w.remove(t, m)
}

// found: the links on the host can be attributed and removed without a record.
func (c *Case) found(t *testing.T) {
	w := c.newHost(t)
	m := w.make(t, c)
	finder, ok := w.kind.(plug.Finder)
	if !ok {
		t.Fatal("it has a link on the host, and does not find it")
	}
	find := func() []plug.Found {
		t.Helper()
		all, err := nettest.OpenHandle(t, w.host.Namespace()).LinkList()
		if err != nil {
			t.Fatal(err)
		}
		return finder.Find(t.Context(), all)
	}
	found := find()
	if len(found) != 1 {
		t.Fatalf("found %+v, want one", found)
	}
	want := m
	want.Namespace = link.Place{}
	if found[0].MAC == "" { // the host need not know it
		want.MAC = ""
	}
	if diff := cmp.Diff(want, found[0].Made); diff != "" {
		t.Errorf("found (-made +found):\n%s", diff)
	}
	if found[0].Astray(m) {
		t.Errorf("%+v is said to be astray", found[0])
	}
	w.isGone(t, found[0].Made, "found on the host", false)
	w.remove(t, found[0].Made)
	w.unmade(t, "Remove of what was found")
	if found := find(); len(found) > 0 {
		t.Errorf("found %+v after Remove", found)
	}
	w.isGone(t, want, "removed, and never known", true)
}

// unknown: a DEL comes for an interface whose record was lost.
func (c *Case) unknown(t *testing.T) {
	w := c.newHost(t)
	w.make(t, c)
	w.remove(t, w.kind.Plan(w.pod.Place(), plug.Interface{ContainerID: c.Interface.ContainerID, Name: c.Interface.Name}))
	w.unmade(t, "Remove of what is not known")
}
