package node

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/answer"
	"fairlead.dev/fairlead/internal/node/plugin"
	"fairlead.dev/fairlead/test/nodetest"
)

// A repeated ADD finds the addresses of its pod among others, in any order, and not those of an
// interface that is gone.
func TestRepeatedADDFindsTheAddresses(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		w.pod("p", "u1")
		w.mustAdd("c1", "p", "u1")
		name := plug.RoutedName("c1", "eth0")
		w.kernel.change(func(links map[string]fakeLink) {
			l := links[name]
			others := []netip.Prefix{netip.MustParsePrefix("fd00::5/128"), netip.MustParsePrefix("fe80::1/64")}
			l.plug.Addresses = append(others, l.plug.Addresses...)
			links[name] = l
		})
		if _, err := w.add("c1", "p", "u1"); err != nil {
			t.Errorf("ADD again: %v", err)
		}
		w.kernel.change(func(links map[string]fakeLink) { delete(links, name) })
		_, err := w.add("c1", "p", "u1")
		nodetest.WantCode(t, err, answer.CodeDiffers, "interface eth0 is missing in the namespace")
	})
}

// noSysctls is a kernel without br_netfilter.
type noSysctls struct{}

func (noSysctls) Read(name string) (string, error) { return "", errors.New(name + " is not there") }

func (noSysctls) Set(name, _ string) error { return errors.New(name + " is not there") }

// The same daemon serves the no-op plugin, without an API server: every verb through the
// socket, a DEL from the spool, and the heartbeat.
func TestDaemonOfTheNoopPlugin(t *testing.T) {
	dir := t.TempDir()
	c := Config{
		NodeName: "n1", BootID: "boot-1", StateDir: dir, Socket: filepath.Join(dir, "cni.sock"), Metrics: prometheus.NewRegistry(),
	}
	spool := filepath.Join(dir, cniproto.SpoolDir)
	if err := os.MkdirAll(spool, 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := New(c, plugin.NewNoop(noSysctls{}))
	if err != nil {
		t.Fatal(err)
	}
	if d.Ready() == nil {
		t.Error("ready before it serves")
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	client := cniproto.Client{Socket: c.Socket}
	deadline := time.Now().Add(time.Minute)
	do := func(r cniproto.Request) ([]byte, error) {
		for {
			answer, err := client.Do(deadline, &r)
			if d.Ready() == nil || time.Now().After(deadline) {
				return answer, err
			}
			<-time.After(10 * time.Millisecond)
		}
	}
	if _, err := do(request(cniproto.VerbStatus, "", "", "", "")); err != nil && d.Ready() != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{cniproto.VerbStatus, cniproto.VerbCheck, cniproto.VerbDel, cniproto.VerbGC} {
		if answer, err := do(request(verb, "c1", "/run/netns/x", "p", "u1")); err != nil {
			t.Errorf("%s: %s, %v", verb, answer, err)
		}
	}
	answer, err := do(request(cniproto.VerbAdd, "c2", "/run/netns/x", "p", "u1"))
	if want := `{"cniVersion":"1.1.0","interfaces":[],"ips":[],"dns":{}}`; err != nil || string(answer) != want {
		t.Errorf("ADD: %s, %v", answer, err)
	}
	_, err = do(request(cniproto.VerbAdd, "c1", "/run/netns/x", "p", "u1"))
	nodetest.WantCode(t, err, cniproto.CodeUnknownContainer, "deleted") // its DEL came before
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if raw, err := os.ReadFile(filepath.Join(dir, cniproto.HeartbeatFile)); err != nil || string(raw) != "boot-1" {
		t.Errorf("heartbeat %q, %v", raw, err)
	}
}
