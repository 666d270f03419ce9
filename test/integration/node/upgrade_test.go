package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"fairlead.dev/fairlead/internal/cniproto"
)

// The daemon is upgraded twice while pods are created and deleted: the next daemon is started
// beside the current daemon, which then gets the signal to stop. No request fails, and STATUS
// never fails (in go-cni#123 a failing STATUS made nodes unready). During each upgrade the
// ADD of one pod waits for its record, longer than the plugin waits for a daemon.
func TestUpgradeUnderLoad(t *testing.T) {
	l, n, pods := oneNode(t, "p1", "p2", "p3", "p4")
	n.stop(t)
	text, err := os.ReadFile(n.config)
	if err == nil {
		err = os.WriteFile(n.config, bytes.Replace(text, []byte("addTimeout: 10s"), []byte("addTimeout: 80s"), 1), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	n.start(t)
	stop := make(chan struct{})
	var served atomic.Int64
	var wg sync.WaitGroup
	for _, p := range pods {
		wg.Go(func() {
			first := p.containerID
			for number := 0; ; number++ {
				select {
				case <-stop:
					return
				default:
				}
				p.containerID = fmt.Sprintf("%s-%d", first, number)
				for _, verb := range []string{"ADD", "STATUS", "DEL"} {
					if a := n.cni(verb, p, p.netns.Path()); a.err != nil {
						t.Errorf("%s of sandbox %d of %s: %v: %s", verb, number, p.name, a.err, a.stdout)
					}
					served.Add(1)
				}
			}
		})
	}
	// serves waits until that many more requests were served.
	serves := func(more int64) {
		t.Helper()
		until := served.Load() + more
		l.cluster.Eventually(t, "requests to be served", func(context.Context) error {
			if now := served.Load(); now < until && !t.Failed() {
				return fmt.Errorf("%d of %d", now, until)
			}
			return nil
		})
	}
	serves(24)
	for i := range 2 {
		late := n.pod(t, fmt.Sprintf("late%d", i))
		waited := make(chan pluginAnswer, 1)
		go func() { waited <- n.cni("ADD", late, late.netns.Path()) }()
		before := n.daemon
		n.launch(t)
		serves(6)
		if err := before.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := before.Wait(); err != nil {
			t.Errorf("the daemon before ended with %v", err)
		}
		n.awaitReady(t)
		serves(24)
		l.attachment(t, n, late, fmt.Sprintf("10.244.1.%d/32", 20+i), fmt.Sprintf("fd00:10:244:1::%d/128", 20+i))
		a := <-waited
		a.wantOK(t, "ADD of "+late.name)
		n.cni("DEL", late, late.netns.Path()).wantOK(t, "DEL of "+late.name)
	}
	close(stop)
	wg.Wait()
	t.Logf("%d requests served", served.Load())

	// The plugin may have spooled a DEL between two daemons. The daemon processes it soon.
	l.cluster.Eventually(t, "every sandbox to be gone", func(context.Context) error {
		for _, name := range n.state(t).Links {
			if strings.HasPrefix(name, "fl") && len(name) == 15 {
				return fmt.Errorf("link %s is there", name)
			}
		}
		for _, dir := range []string{"attachments", cniproto.SpoolDir} {
			entries, err := os.ReadDir(filepath.Join(n.dir, "state", dir))
			if err != nil && !errors.Is(err, os.ErrNotExist) || len(entries) > 0 {
				return fmt.Errorf("%s holds %v, %w", dir, entries, err)
			}
		}
		return nil
	})
}
