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

// boundPods creates pods of further networks on the real node and waits for their records.
func (w *testbed) boundPods(ctx context.Context, prefix string, n int, networks ...string) ([]*corev1.Pod, *board, error) {
	b, err := w.kube.watchNodes(ctx, false, realNode)
	if err != nil {
		return nil, nil, err
	}
	pods := make([]*corev1.Pod, n)
	err = w.abreast(n, func(i int) (err error) {
		pods[i], err = w.kube.pod(ctx, fmt.Sprintf("%s-%d", prefix, i), realNode, networks...)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	for _, pod := range pods {
		if _, err := b.record(ctx, pod.UID); err != nil {
			return nil, nil, err
		}
	}
	return pods, b, nil
}

// comparison has the participants of the comparison of ADD and DEL.
type comparison struct {
	w      *testbed
	pods   []*corev1.Pod
	board  *board
	config []byte

	raw       *rawHost
	rawHandle *netlink.Handle
	// The reference plugins without options, and with the options that ours always has:
	// masquerade and hairpin.
	ref, masqRef             *netlab.Namespace
	refConfig, masqRefConfig []byte
	boxes                    []sandbox // ours, raw, the reference's twice

	durations
}

// durations are the times of the rounds.
type durations struct {
	nothing, rawAttach, ourAdd, refAdd, masqRefAdd, ourDel, refDel, ourGone samples
}

// addAndDel measures ADD and DEL, one at a time.
func addAndDel(ctx context.Context, w *testbed) (map[string]figure, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := w.serving(ctx); err != nil {
		return nil, err
	}
	const warmUp = 4
	rounds := w.samples(240, 28)
	c := &comparison{w: w}
	defer c.close()
	if err := c.prepare(ctx, warmUp+rounds); err != nil {
		return nil, err
	}
	err := c.afterWarmUp(warmUp, rounds, func(round int) error {
		if (round+1)%50 == 0 {
			w.Say("  %d of %d rounds", round+1-warmUp, rounds)
		}
		return c.round(ctx, round)
	})
	if err != nil {
		return nil, err
	}
	floor := c.nothing.median() + c.rawAttach.median()
	w.Say("  medians of %d: nothing %.2f ms, raw attach %.2f; ADD %.2f, the reference's %.2f (%.2f with masquerade); DEL %.2f, %.2f; our link gone after %.2f",
		rounds, c.nothing.median(), c.rawAttach.median(), c.ourAdd.median(), c.refAdd.median(), c.masqRefAdd.median(),
		c.ourDel.median(), c.refDel.median(), c.ourGone.median())
	return map[string]figure{
		"add_ready":             {c.ourAdd.median(), floor},
		"add_vs_reference":      {c.ourAdd.median(), c.refAdd.median()},
		"add_vs_reference_masq": {c.ourAdd.median(), c.masqRefAdd.median()},
		"del_vs_reference":      {c.ourDel.median(), c.refDel.median()},
		"del_until_gone":        {c.ourGone.median(), c.refDel.median()},
	}, nil
}

// afterWarmUp runs rounds, which add to d, and discards the times of the first rounds.
func (d *durations) afterWarmUp(warmUp, rounds int, round func(n int) error) error {
	for n := range warmUp + rounds {
		if n == warmUp {
			*d = durations{}
		}
		if err := round(n); err != nil {
			return fmt.Errorf("round %d: %w", n, err)
		}
	}
	return nil
}

// serving starts everything that is needed for an ADD.
func (w *testbed) serving(ctx context.Context) error {
	if err := w.cluster(ctx); err != nil {
		return err
	}
	if err := w.controller(ctx, false); err != nil {
		return err
	}
	return w.nodeDaemon(ctx)
}

func (c *comparison) prepare(ctx context.Context, rounds int) (err error) {
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
	for _, r := range []struct {
		ns         **netlab.Namespace
		config     *[]byte
		name       string
		masquerade bool
	}{{&c.ref, &c.refConfig, "plain", false}, {&c.masqRef, &c.masqRefConfig, "masq", true}} {
		if *r.ns, err = netlab.NewNamespace(); err != nil {
			return err
		}
		if *r.config, err = w.refConfig(r.name, 0, r.masquerade); err != nil {
			return err
		}
	}
	c.boxes, _, err = newSandboxes(4)
	return err
}

// refConfig returns a configuration of the reference plugins for the i-th network of a pod.
// The first one has a gateway and a default route.
func (w *testbed) refConfig(name string, i int, masquerade bool) ([]byte, error) {
	ipam := map[string]any{
		"type": "host-local", "dataDir": filepath.Join(w.Tmpfs(), "host-local"), // on tmpfs, like our records
		"ranges": []any{[]any{map[string]any{"subnet": fmt.Sprintf("10.%d.0.0/16", 250-i)}}},
	}
	config := map[string]any{"cniVersion": "1.0.0", "name": name, "type": "bridge", "bridge": fmt.Sprintf("cni%d", i), "ipam": ipam}
	if i == 0 {
		config["isGateway"], ipam["routes"] = true, []any{map[string]any{"dst": "0.0.0.0/0"}}
	}
	if masquerade {
		config["ipMasq"], config["ipMasqBackend"], config["hairpinMode"] = true, "nftables", true
	}
	return json.Marshal(config)
}

func (c *comparison) close() {
	if c.rawHandle != nil {
		c.rawHandle.Close()
	}
	if c.raw != nil {
		c.raw.Close()
	}
	for _, ns := range []*netlab.Namespace{c.ref, c.masqRef} {
		if ns != nil {
			ns.Close()
		}
	}
	for _, s := range c.boxes {
		s.Close()
	}
}

// round plugs each sandbox once and unplugs it again.
func (c *comparison) round(ctx context.Context, round int) error {
	pod := c.pods[round]
	ours := c.ourExecution(cniCall{containerID: containerID("ours", round), sandbox: c.boxes[0], pod: pod})
	theirs := c.refExecution(c.ref, c.refConfig, cniCall{containerID: containerID("theirs", round), sandbox: c.boxes[2]})
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
		func() error {
			// The status is written a while after the answer.
			if err := ours.exec(ctx, "ADD", &c.ourAdd); err != nil {
				return err
			}
			return c.board.attached(ctx, pod.UID, ours.containerID)
		},
		func() error { return theirs.exec(ctx, "ADD", &c.refAdd) })
	if err != nil {
		return err
	}
	if round%4 == 0 { // it takes long
		if err := c.masquerading(ctx, round); err != nil {
			return err
		}
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

// masquerading measures the reference's ADD with the options that ours always has.
func (c *comparison) masquerading(ctx context.Context, round int) error {
	theirs := c.refExecution(c.masqRef, c.masqRefConfig, cniCall{containerID: containerID("masq", round), sandbox: c.boxes[3]})
	if err := theirs.exec(ctx, "ADD", &c.masqRefAdd); err != nil {
		return err
	}
	var unmeasured samples
	return theirs.exec(ctx, "DEL", &unmeasured)
}

// plugging is a plugin and the sandbox that it plugs and unplugs.
type plugging struct {
	execution
	cniCall
}

func (c *comparison) ourExecution(call cniCall) plugging {
	call.path = c.w.binDir()
	return plugging{execution{ns: c.w.node().Namespace, path: filepath.Join(c.w.binDir(), "fairlead"), stdin: c.config}, call}
}

func (c *comparison) refExecution(host *netlab.Namespace, config []byte, call cniCall) plugging {
	call.path = c.w.tools()
	return plugging{execution{ns: host, path: c.w.tool("bridge"), stdin: config}, call}
}

func (p plugging) exec(ctx context.Context, verb string, into *samples) error {
	p.verb = verb
	p.execution.env = p.cniCall.env()
	_, took, err := p.run(ctx)
	into.addTime(took)
	return err
}

// recordsGone waits until the daemon has dropped the records of sandboxes, which it does
// when the kernel has removed their links.
func (w *testbed) recordsGone(ctx context.Context, containerIDs ...string) error {
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
