package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/cniproto/server"
)

// readyAnswer answers every request at once with a result of the usual size.
type readyAnswer struct{ result []byte }

// Handle implements server.Handler.
func (a readyAnswer) Handle(context.Context, cniproto.Request) ([]byte, error) { return a.result, nil }

const usualResult = `{"cniVersion":"1.0.0","interfaces":[{"name":"flaaaaaaaaaaaaa"},{"name":"eth0","mac":"0a:58:0a:f4:00:02",` +
	`"sandbox":"/var/run/netns/cni-6f8e2cf0-5d2a-4c5e-9a51-2f4d2f3ea1c1"}],"ips":[{"interface":1,"address":"10.244.0.2/32",` +
	`"gateway":"169.254.1.1"}],"routes":[{"dst":"0.0.0.0/0","gw":"169.254.1.1"}],"dns":{}}`

// roundTrip measures the plugin without the daemon's work.
func roundTrip(ctx context.Context, w *testbed) (map[string]figure, error) {
	if err := w.machines(ctx); err != nil {
		return nil, err
	}
	socket := filepath.Join(w.Tmpfs(), "trivial", "cni.sock")
	listener, err := server.Listen(socket)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener, readyAnswer{[]byte(usualResult)}, server.Config{}) }()
	defer func() {
		stop()
		<-served //nolint:errcheck // it ends because the context is cancelled
	}()
	config, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "fairlead", "type": "fairlead", "socket": socket})
	if err != nil {
		return nil, err
	}
	boxes, done, err := newSandboxes(1)
	if err != nil {
		return nil, err
	}
	defer done()
	call := cniCall{
		verb: "ADD", containerID: containerID("trip", 0), sandbox: boxes[0],
		pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "trip", UID: "6f8e2cf0-5d2a-4c5e-9a51-2f4d2f3ea1c1"}},
	}
	plugin := execution{ns: w.node().Namespace, path: w.tool("fairlead-cni"), env: call.env(), stdin: config}
	nothing := w.nothing(plugin)

	var ours, floor samples
	const warmUp = 5
	for round := range w.samples(400, 100) + warmUp {
		err := inTurns(round,
			func() error {
				out, took, err := plugin.run(ctx)
				if err == nil && string(out) != usualResult {
					err = fmt.Errorf("the plugin printed %q", out)
				}
				ours.addTime(took)
				return err
			},
			func() error {
				_, took, err := nothing.run(ctx)
				floor.addTime(took)
				return err
			})
		if err != nil {
			return nil, errors.Join(err, ctx.Err())
		}
	}
	w.Say("  median of %d: plugin %.2f ms (p90 %.2f), nothing %.2f ms (p90 %.2f)", len(ours)-warmUp,
		ours[warmUp:].median(), ours[warmUp:].percentile(90), floor[warmUp:].median(), floor[warmUp:].percentile(90))
	return map[string]figure{"plugin_roundtrip": {ours[warmUp:].median(), floor[warmUp:].median()}}, nil
}

// nothing returns the execution of the program that does nothing, under the same
// conditions as another.
func (w *testbed) nothing(like execution) execution {
	like.path = w.tool("noop")
	return like
}

// containerID returns an ID as long as those of runtimes.
func containerID(what string, i int) string {
	return fmt.Sprintf("%s%d%058d", what, i%10, time.Now().UnixNano())
}
