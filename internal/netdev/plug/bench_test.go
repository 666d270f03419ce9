package plug

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/test/nettest"
)

func benchPlug(i int) Interface {
	return Interface{
		ContainerID: fmt.Sprintf("c%d", i), Name: "eth0", Binding: onBridge(nettest.DefaultBridge), MTU: 1400,
		Addresses: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), 32)},
		Gateways:  []netip.Addr{nettest.Addr("169.254.1.1")},
	}
}

func benchNamespaces(b *testing.B) []*link.Namespace {
	b.Helper()
	pods := make([]*link.Namespace, b.N)
	for i := range pods {
		pods[i] = nettest.NewNamespace(b)
	}
	quiet(b)
	return pods
}

// quiet waits until the kernel has removed the namespaces of the previous benchmark. The
// kernel removes them one after the other, under the lock that everything here needs. A
// link into a namespace that is dropped now goes last.
func quiet(b *testing.B) {
	b.Helper()
	k, last := newPlugHost(b), nettest.NewNamespace(b)
	if err := k.Make(b.Context(), last, benchPlug(0)); err != nil {
		b.Fatal(err)
	}
	events, done := make(chan netlink.LinkUpdate, 64), make(chan struct{})
	defer close(done)
	at := netns.NsHandle(k.Namespace().FD())
	if err := netlink.LinkSubscribeWithOptions(events, done, netlink.LinkSubscribeOptions{Namespace: &at}); err != nil {
		b.Fatal(err)
	}
	if err := last.Close(); err != nil {
		b.Fatal(err)
	}
	nettest.DropPath(b, last.Path())
	for e := range events {
		if e.Header.Type == unix.RTM_DELLINK && e.Attrs().Name == HostName("c0", "eth0") {
			return
		}
	}
	b.Fatal("the kernel tells no more")
}

// attachRaw does the least possible work of plugging: the same objects, each with one
// message of the library, without any check.
func attachRaw(b *testing.B, h *netlink.Handle, bridge int, pod *link.Namespace, i int) error {
	b.Helper()
	guest, err := pod.Handle()
	if err != nil {
		return err
	}
	defer guest.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.MasterIndex = fmt.Sprintf("vh%d", i), 1400, bridge
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(netns.NsHandle(pod.FD()))}
	if err := h.LinkAdd(veth); err != nil {
		return err
	}
	eth, err := guest.LinkByName("eth0")
	if err != nil {
		return err
	}
	lo, err := guest.LinkByName("lo")
	if err != nil {
		return err
	}
	addr := &net.IPNet{IP: net.IPv4(10, 244, byte(i>>8), byte(i)), Mask: net.CIDRMask(32, 32)}
	for _, f := range []func() error{
		func() error { return guest.LinkSetUp(lo) },
		func() error { return guest.AddrAdd(eth, &netlink.Addr{IPNet: addr}) },
		func() error { return guest.LinkSetUp(eth) },
		func() error {
			return guest.RouteAdd(&netlink.Route{LinkIndex: eth.Attrs().Index, Gw: net.IPv4(169, 254, 1, 1), Flags: int(netlink.FLAG_ONLINK)})
		},
		func() error { return h.LinkSetUp(veth) },
	} {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// bench runs op for all pods with a number of workers, and reports the rate.
func bench(b *testing.B, workers int, op func(worker, i int) error) {
	b.Helper()
	took := make([]time.Duration, b.N)
	b.ResetTimer()
	var wg sync.WaitGroup
	next := make(chan int)
	for w := range workers {
		wg.Go(func() {
			for i := range next {
				start := time.Now()
				if err := op(w, i); err != nil {
					b.Error(err)
				}
				took[i] = time.Since(start)
			}
		})
	}
	for i := range b.N {
		next <- i
	}
	close(next)
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
}

func BenchmarkAttach(b *testing.B) { benchmarkAttach(b, 1) }

func BenchmarkAttachParallel16(b *testing.B) { benchmarkAttach(b, 16) }

func benchmarkAttach(b *testing.B, workers int) {
	b.Helper()
	k, pods := newPlugHost(b), benchNamespaces(b)
	bench(b, workers, func(_, i int) error {
		return k.Make(context.Background(), pods[i], benchPlug(i))
	})
}

func BenchmarkRawVeth(b *testing.B) { benchmarkRaw(b, 1) }

func BenchmarkRawVethParallel16(b *testing.B) { benchmarkRaw(b, 16) }

func benchmarkRaw(b *testing.B, workers int) {
	b.Helper()
	k, pods := newPlugHost(b), benchNamespaces(b)
	handles := make([]*netlink.Handle, workers)
	for w := range handles {
		h, err := k.Handle()
		if err != nil {
			b.Fatal(err)
		}
		defer h.Close()
		handles[w] = h
	}
	bridge, err := handles[0].LinkByName(nettest.DefaultBridge)
	if err != nil {
		b.Fatal(err)
	}
	bench(b, workers, func(w, i int) error {
		return attachRaw(b, handles[w], bridge.Attrs().Index, pods[i], i)
	})
}

func BenchmarkDetach(b *testing.B) { benchmarkDetach(b, 1) }

func BenchmarkDetachParallel64(b *testing.B) { benchmarkDetach(b, 64) }

func benchmarkDetach(b *testing.B, workers int) {
	b.Helper()
	k, pods := newPlugHost(b), benchNamespaces(b)
	for i, pod := range pods {
		if err := k.Make(b.Context(), pod, benchPlug(i)); err != nil {
			b.Fatal(err)
		}
	}
	bench(b, workers, func(_, i int) error {
		return k.detach(context.Background(), HostName(fmt.Sprintf("c%d", i), "eth0"))
	})
}
