package plug

import (
	"errors"
	"io"
	"math"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/test/nettest"
)

func TestTBF(t *testing.T) {
	type shape struct {
		Rate          uint64
		Limit, Buffer uint32
	}
	tick := netlink.TickInUsec()
	for _, c := range []struct {
		name        string
		rate, burst uint64
		want        shape
	}{
		{"as asked", 8_000_000, 1_600_000, shape{1_000_000, 225_000, uint32(200_000 * tick)}},
		{"no burst", 80_000_000, 0, shape{10_000_000, 1_250_000, uint32(100_000 * tick)}},
		{"containerd's unset burst", 80_000_000, math.MaxUint32, shape{10_000_000, 1_250_000, uint32(100_000 * tick)}},
		{"CRI-O's unset burst", 80_000_000, 1<<35 - 8, shape{10_000_000, 1_250_000, uint32(100_000 * tick)}},
		{"a burst smaller than a packet", 8_000_000, 8, shape{1_000_000, 25_000 + 65536, uint32(65_536 * tick)}},
		{"slow: the time does not fit", 8, 0, shape{1, 65536, math.MaxUint32}},
	} {
		q := tbf(7, c.rate, c.burst)
		if diff := cmp.Diff(c.want, shape{q.Rate, q.Limit, q.Buffer}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// shaped plugs a pod with limits, and a pod without limits beside it.
func shaped(t *testing.T, b *Bandwidth) (k *bridge, pod, other *link.Namespace, p Interface) {
	t.Helper()
	k = newPlugHost(t)
	plug := func(id, address string, b *Bandwidth) (*link.Namespace, Interface) {
		ns := nettest.NewNamespace(t)
		p := Interface{
			ContainerID: id, Name: "eth0", Binding: onBridge(nettest.DefaultBridge), MTU: 1500, Bandwidth: b,
			Addresses: []netip.Prefix{nettest.Prefix(address)},
		}
		if err := k.Make(t.Context(), ns, p); err != nil {
			t.Fatal(err)
		}
		return ns, p
	}
	pod, p = plug("shaped", "10.9.0.1/24", b)
	other, _ = plug("free", "10.9.0.2/24", nil)
	return k, pod, other, p
}

// atLeast sends a number of bytes over TCP, and fails if they take less time than the
// limit allows.
func atLeast(t *testing.T, from, to *link.Namespace, at string, bytes int, want time.Duration) {
	t.Helper()
	var l net.Listener
	nettest.In(t, to, func() (err error) {
		l, err = net.Listen("tcp", at)
		return err
	})
	defer l.Close()
	got := make(chan int64, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			got <- 0
			return
		}
		n, _ := io.Copy(io.Discard, c)
		_ = c.Close()
		got <- n
	}()
	var c net.Conn
	nettest.In(t, from, func() (err error) {
		c, err = net.DialTimeout("tcp", at, time.Minute)
		return err
	})
	start := time.Now()
	_, err := c.Write(make([]byte, bytes))
	_ = c.Close()
	if n := <-got; err != nil || n != int64(bytes) {
		t.Fatalf("%d of %d bytes came: %v", n, bytes, err)
	}
	if took := time.Since(start); took < want {
		t.Errorf("%d bytes to %s took %s, which the limit forbids before %s", bytes, at, took, want)
	}
}

func TestBandwidth(t *testing.T) {
	// 1 MB/s into the pod, 2 MB/s out of it, and 100 kB at once.
	k, pod, other, p := shaped(t, &Bandwidth{IngressRate: 8_000_000, IngressBurst: 800_000, EgressRate: 16_000_000, EgressBurst: 800_000})
	atLeast(t, other, pod, "10.9.0.1:4242", 1_000_000, 850*time.Millisecond)
	atLeast(t, pod, other, "10.9.0.2:4242", 1_000_000, 400*time.Millisecond)
	host := HostName(p.ContainerID, p.Name)
	if links := nettest.LinkNames(t, k.Namespace()); !cmp.Equal(links, []string{nettest.DefaultBridge, shaperName(host), HostName("free", "eth0"), host, "lo"}, sorted) {
		t.Errorf("links %v", links)
	}
	if err := k.detach(t.Context(), host); err != nil {
		t.Fatal(err)
	}
	if links := nettest.LinkNames(t, k.Namespace()); !cmp.Equal(links, []string{nettest.DefaultBridge, HostName("free", "eth0"), "lo"}, sorted) {
		t.Errorf("left after the removal: %v", links)
	}
}

var sorted = cmp.Transformer("set", func(names []string) map[string]bool {
	set := map[string]bool{}
	for _, n := range names {
		set[n] = true
	}
	return set
})

// TestShaperLeftOver: the kernel removes the host end with the namespace of the pod, but
// not the shaper.
func TestShaperLeftOver(t *testing.T) {
	k, _, _, p := shaped(t, &Bandwidth{EgressRate: 8_000_000})
	host := HostName(p.ContainerID, p.Name)
	nettest.Steps(t, k.Sockets, link.Remove(host))
	found := find(t, k)
	if !slices.ContainsFunc(found, func(f Found) bool {
		return f.HostLink == host && f.ContainerID == p.ContainerID && f.Name == p.Name
	}) {
		t.Fatalf("what is left of %s is not found: %+v", host, found)
	}
	// A pod of the same name gets a new shaper.
	ns := nettest.NewNamespace(t)
	if err := k.Make(t.Context(), ns, p); err != nil {
		t.Fatal(err)
	}
	if err := k.detach(t.Context(), host); err != nil {
		t.Fatal(err)
	}
	if names := nettest.LinkNames(t, k.Namespace()); cmp.Equal(names, []string{shaperName(host)}, sorted) || len(names) != 3 {
		t.Errorf("left: %v", names)
	}
}

func TestBandwidthInvalid(t *testing.T) {
	for _, b := range []Bandwidth{{IngressRate: 7}, {EgressRate: 1}, {IngressBurst: 800}, {EgressBurst: 8}} {
		if err := b.validate(); !errors.Is(err, link.ErrInvalid) {
			t.Errorf("%+v: %v, want ErrInvalid", b, err)
		}
	}
}
