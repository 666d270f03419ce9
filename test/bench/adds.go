package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/test/netlab"
)

// boundPods creates pods on the real node and waits for their records.
func (w *world) boundPods(ctx context.Context, prefix string, n int) ([]*corev1.Pod, *board, error) {
	b, err := w.kube.watchNodes(ctx, false, realNode)
	if err != nil {
		return nil, nil, err
	}
	var pods []*corev1.Pod
	for i := range n {
		pod, err := w.kube.pod(ctx, fmt.Sprintf("%s-%d", prefix, i), realNode)
		if err != nil {
			return nil, nil, err
		}
		pods = append(pods, pod)
	}
	for _, pod := range pods {
		if _, err := b.record(ctx, pod.UID); err != nil {
			return nil, nil, err
		}
	}
	return pods, b, nil
}

// contest is what takes part in the comparison of ADD and DEL.
type contest struct {
	w      *world
	pods   []*corev1.Pod
	board  *board
	config []byte

	raw       *rawHost
	rawHandle *netlink.Handle
	ref       *netlab.Namespace // the host of the reference plugins
	refConfig []byte
	boxes     []sandbox // ours, raw, the reference's

	nothing, rawAttach, ourAdd, unheldAdd, refAdd, ourDel, refDel, ourGone samples
}

// addAndDel measures ADD and DEL, one at a time.
func addAndDel(ctx context.Context, w *world) (map[string]figure, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := w.serving(ctx); err != nil {
		return nil, err
	}
	const warmUp = 4 // even: every other round is of another kind
	rounds := w.samples(240, 40)
	c := &contest{w: w}
	defer c.close()
	if err := c.prepare(ctx, warmUp+rounds); err != nil {
		return nil, err
	}
	for round := range warmUp + rounds {
		if err := c.round(ctx, round); err != nil {
			return nil, fmt.Errorf("round %d: %w", round, err)
		}
		if (round+1)%50 == 0 {
			w.say("  %d of %d rounds", round+1-warmUp, rounds)
		}
	}
	for _, s := range []*samples{&c.nothing, &c.rawAttach, &c.refAdd, &c.ourDel, &c.refDel, &c.ourGone} {
		*s = (*s)[warmUp:]
	}
	for _, s := range []*samples{&c.ourAdd, &c.unheldAdd} {
		*s = (*s)[warmUp/2:]
	}
	floor := c.nothing.median() + c.rawAttach.median()
	w.say("  medians of %d: nothing %.2f ms, raw attach %.2f; ADD %.2f (%.2f unheld), the reference's %.2f; DEL %.2f, %.2f; our link gone after %.2f",
		rounds, c.nothing.median(), c.rawAttach.median(), c.ourAdd.median(), c.unheldAdd.median(), c.refAdd.median(),
		c.ourDel.median(), c.refDel.median(), c.ourGone.median())
	return map[string]figure{
		"add_ready":        {c.ourAdd.median(), floor},
		"add_ready_unheld": {c.unheldAdd.median(), floor},
		"add_vs_reference": {c.ourAdd.median(), c.refAdd.median()},
		"del_vs_reference": {c.ourDel.median(), c.refDel.median()},
		"del_until_gone":   {c.ourGone.median(), c.refDel.median()},
	}, nil
}

// serving has everything run that serves an ADD.
func (w *world) serving(ctx context.Context) error {
	if err := w.cluster(ctx); err != nil {
		return err
	}
	if err := w.controller(ctx, false); err != nil {
		return err
	}
	return w.nodeDaemon(ctx)
}

func (c *contest) prepare(ctx context.Context, rounds int) (err error) {
	w := c.w
	if c.pods, c.board, err = w.boundPods(ctx, "add", rounds); err != nil {
		return err
	}
	if c.config, err = w.pluginConfig(); err != nil {
		return err
	}
	if c.raw, err = newRawHost(); err != nil {
		return err
	}
	if c.rawHandle, err = c.raw.Netlink(); err != nil {
		return err
	}
	if c.ref, err = netlab.NewNamespace(); err != nil {
		return err
	}
	c.refConfig, err = json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": "reference", "type": "bridge", "bridge": "cni0", "isGateway": true,
		"ipam": map[string]any{
			"type": "host-local", "dataDir": filepath.Join(w.run(), "host-local"), // on tmpfs, as our records are
			"ranges": []any{[]any{map[string]any{"subnet": "10.250.0.0/16"}}},
			"routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
		},
	})
	if err != nil {
		return err
	}
	c.boxes, _, err = newSandboxes(3)
	return err
}

func (c *contest) close() {
	if c.rawHandle != nil {
		c.rawHandle.Close()
	}
	if c.raw != nil {
		c.raw.Close()
	}
	if c.ref != nil {
		c.ref.Close()
	}
	for _, s := range c.boxes {
		s.Close()
	}
}

// round plugs each sandbox once and unplugs it again.
func (c *contest) round(ctx context.Context, round int) error {
	pod := c.pods[round]
	ours := c.ourExecution(cniCall{containerID: containerID("ours", round), sandbox: c.boxes[0], pod: pod})
	theirs := c.refExecution(cniCall{containerID: containerID("theirs", round), sandbox: c.boxes[2]})
	err := inTurns(round,
		func() error {
			_, took, err := c.w.nothing(ours.execution).run(ctx)
			c.nothing.addTime(took)
			return err
		},
		func() error {
			start := time.Now()
			err := c.raw.attach(c.rawHandle, c.boxes[1], round)
			c.rawAttach.addTime(time.Since(start))
			return err
		},
		func() (err error) {
			// The status is written behind the answer. What the API server does
			// for it, other machines do in a cluster: here it would take the
			// processors of the plugin, and of what is measured next.
			// Every other round shows what that makes of it.
			release, into := func() {}, &c.unheldAdd
			if round%2 == 0 {
				release, into = c.w.proxy.hold(), &c.ourAdd
			}
			err = ours.exec(ctx, "ADD", into)
			release()
			if err != nil {
				return err
			}
			return c.board.attached(ctx, pod.UID, ours.containerID)
		},
		func() error { return theirs.exec(ctx, "ADD", &c.refAdd) })
	if err != nil {
		return err
	}
	return inTurns(round,
		func() error {
			start := time.Now()
			if err := ours.exec(ctx, "DEL", &c.ourDel); err != nil {
				return err
			}
			if err := c.w.recordsGone(ctx, ours.containerID); err != nil {
				return err
			}
			c.ourGone.addTime(time.Since(start))
			return nil
		},
		func() error { return theirs.exec(ctx, "DEL", &c.refDel) },
		func() error { return c.raw.detach(round) })
}

// plugging is a plugin and the sandbox that it plugs and unplugs.
type plugging struct {
	execution
	cniCall
}

func (c *contest) ourExecution(call cniCall) plugging {
	call.path = c.w.binDir()
	return plugging{execution{ns: c.w.node().Namespace, path: filepath.Join(c.w.binDir(), "fairlead"), stdin: c.config}, call}
}

func (c *contest) refExecution(call cniCall) plugging {
	call.path = c.w.tools()
	return plugging{execution{ns: c.ref, path: c.w.tool("bridge"), stdin: c.refConfig}, call}
}

func (p plugging) exec(ctx context.Context, verb string, into *samples) error {
	p.verb = verb
	p.execution.env = p.cniCall.env()
	_, took, err := p.run(ctx)
	into.addTime(took)
	return err
}

// recordsGone waits until the daemon has dropped the records of sandboxes,
// which it does when the kernel has removed their links.
func (w *world) recordsGone(ctx context.Context, containerIDs ...string) error {
	for _, id := range containerIDs {
		path := filepath.Join(w.stateDir(), "attachments", id+".json")
		err := await(ctx, "the record of a sandbox to go", func(context.Context) error {
			_, err := os.Stat(path)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return nil
			case err == nil:
				return errors.New("it is there")
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
