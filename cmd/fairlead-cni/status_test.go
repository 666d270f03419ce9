package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.dev/fairlead/internal/cniproto"
)

func TestStatusAway(t *testing.T) {
	bootID, err := os.ReadFile(bootIDFile)
	if err != nil {
		t.Fatal(err)
	}
	hang := func(ctx context.Context, _ cniproto.Request) ([]byte, error) {
		<-ctx.Done()
		<-time.After(200 * time.Millisecond) // until the plugin has given up
		return nil, errors.New("late")
	}
	for _, tc := range []struct {
		name      string
		heartbeat string
		age       time.Duration
		daemon    handlerFunc
		wantText  []string
	}{
		{name: "no heartbeat", wantText: []string{"the daemon is away", "heartbeat", "cannot be read"}},
		{name: "young", heartbeat: strings.TrimSpace(string(bootID)), age: 50 * time.Second},
		{name: "old", heartbeat: string(bootID), age: 70 * time.Second, wantText: []string{"is 70s old, more than 60s"}},
		{name: "before the clock was set back", heartbeat: string(bootID), age: -70*time.Second - 500*time.Millisecond, wantText: []string{"is 70s ahead of the clock"}},
		{name: "of another boot", heartbeat: "another", wantText: []string{"is of another boot"}},
		{name: "daemon hangs", heartbeat: string(bootID), daemon: hang},
		{name: "daemon hangs without heartbeat", daemon: hang, wantText: []string{"did not answer in time"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			if tc.daemon != nil {
				serve(t, dir, tc.daemon)
			}
			if tc.heartbeat != "" {
				file := filepath.Join(dir, "heartbeat")
				if err := os.WriteFile(file, []byte(tc.heartbeat), 0o600); err != nil {
					t.Fatal(err)
				}
				then := time.Now().Add(-tc.age)
				if err := os.Chtimes(file, then, then); err != nil {
					t.Fatal(err)
				}
			}
			c := newCall("STATUS", dir).run()
			if len(tc.wantText) == 0 {
				c.succeeds(t, "")
			} else {
				c.fails(t, "1.1.0", cniproto.CodeUnavailable, tc.wantText...)
			}
			if c.waits > 0 {
				t.Errorf("waited %d times", c.waits)
			}
		})
	}
}

// If the daemon answers that it cannot serve, STATUS fails; the heartbeat does not matter.
func TestStatusUnavailable(t *testing.T) {
	dir := t.TempDir()
	serve(t, dir, func(context.Context, cniproto.Request) ([]byte, error) {
		return nil, &cniproto.Error{Code: cniproto.CodeUnavailable, Msg: "no bridge"}
	})
	newCall("STATUS", dir).run().fails(t, "1.1.0", cniproto.CodeUnavailable, "no bridge")
}
