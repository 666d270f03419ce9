package plug

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/test/nettest"
)

func TestHostName(t *testing.T) {
	seen := map[string]string{}
	for i := range 20000 {
		for _, ifname := range []string{"eth0", "net1"} {
			id := fmt.Sprintf("container-%d", i)
			name := HostName(id, ifname)
			if !IsHostName(name) || link.CheckName(name) != nil {
				t.Fatalf("HostName(%q, %q) = %q: not a name of a host end", id, ifname, name)
			}
			if twin, ok := seen[name]; ok {
				t.Fatalf("%s/%s and %s have the same name %s", id, ifname, twin, name)
			}
			seen[name] = id + "/" + ifname
		}
	}
	// Records of running pods have these names: they can never change.
	if got := HostName("0123456789abcdef", "eth0"); got != "flsxmtbrngnmqdn" {
		t.Errorf("HostName is %q now", got)
	}
	if HostName("a", "bc") == HostName("ab", "c") {
		t.Error("where the container ID ends makes no difference")
	}
}

func TestDetachRefuses(t *testing.T) {
	k := newPlugHost(t)
	for _, name := range []string{"", "lo", nettest.DefaultBridge, "eth0", "fl", "flABCDEFGHIJKLM", "flsxmtbrngnmqdn7"} {
		if err := k.detach(t.Context(), name); !errors.Is(err, link.ErrInvalid) || !strings.Contains(err.Error(), `"`+name+`"`) {
			t.Errorf("detach(%q): %v, want ErrInvalid with the name", name, err)
		}
	}
	if err := k.detach(t.Context(), HostName("none", "eth0")); err != nil {
		t.Errorf("detach of nothing: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := k.detach(ctx, HostName("none", "eth0")); !errors.Is(err, context.Canceled) {
		t.Errorf("detach after the end: %v", err)
	}
}

// Removals overlap. Each call returns only when its link is gone, also a second call for
// the same link.
func TestDetachParallel(t *testing.T) {
	const pods = 64
	k := newPlugHost(t)
	var names []string
	for i := range pods {
		p := benchPlug(i)
		if err := k.Make(t.Context(), nettest.NewNamespace(t), p); err != nil {
			t.Fatal(err)
		}
		names = append(names, HostName(p.ContainerID, p.Name))
	}
	var wg sync.WaitGroup
	for _, name := range append(names, names...) {
		wg.Go(func() {
			if err := k.detach(t.Context(), name); err != nil {
				t.Error(err)
				return
			}
			c, err := k.Conn()
			if err != nil {
				t.Error(err)
				return
			}
			defer k.Release(c)
			if index, err := c.Index(name); err != nil || index != 0 {
				t.Errorf("%s is link %d after detach (%v)", name, index, err)
			}
		})
	}
	wg.Wait()
	if found := find(t, k); len(found) != 0 {
		t.Errorf("found after all: %v", found)
	}
}

// Many pods may come and go at once.
func TestAttachParallel(t *testing.T) {
	const pods = 32
	k := newPlugHost(t)
	var wg sync.WaitGroup
	for i := range pods {
		pod := nettest.NewNamespace(t)
		wg.Go(func() {
			for range 3 {
				p := benchPlug(i)
				if err := k.Make(t.Context(), pod, p); err != nil {
					t.Error(err)
					return
				}
				if ips, err := nettest.PodIPs(pod, "eth0"); err != nil || len(ips) != 1 {
					t.Errorf("addresses %v, %v", ips, err)
				}
				if err := k.detach(t.Context(), HostName(p.ContainerID, p.Name)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if found := find(t, k); len(found) != 0 {
		t.Errorf("found after all: %v", found)
	}
}

func TestPodIPsWithoutLink(t *testing.T) {
	pod := nettest.NewNamespace(t)
	_, err := nettest.PodIPs(pod, "eth0")
	if !errors.Is(err, link.ErrNoLink) || !strings.Contains(err.Error(), "eth0") {
		t.Fatalf("error %v, want ErrNoLink with the name", err)
	}
	nettest.Fits(t, err)
}
