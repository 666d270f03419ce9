package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/test/quiet"
)

const (
	// abreast is how many ADDs are in progress at once.
	abreast = 16
	// batch is how many ADDs are made before everything is unplugged again.
	batch = 64
	// asideEvery is after how many batches there is one of the measurements without a
	// target: with exec, which takes ten times as long, and unheld. It is odd, so that
	// those with exec, too, begin alternately with ours and with the baseline.
	asideEvery = 3
)

// parallelRun has the resources for the batches.
type parallelRun struct {
	w       *testbed
	pods    []*corev1.Pod
	board   *board
	config  []byte
	boxes   []sandbox // ours, then the baseline's
	raw     *rawHost
	handles []*netlink.Handle // of the raw host, one for each worker

	socket, unheld, exec, rawSocket, rawExec samples // per second
}

// parallel measures 16 ADDs at once.
func parallel(ctx context.Context, w *testbed) (map[string]figure, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := w.serving(ctx); err != nil {
		return nil, err
	}
	p := &parallelRun{w: w}
	defer p.close()
	if err := p.prepare(ctx); err != nil {
		return nil, err
	}
	const warmUp = 2
	batches := w.samples(30, 5)
	for round := range warmUp + batches {
		for _, exec := range []bool{false, true} {
			if exec && round%asideEvery != 0 {
				continue
			}
			err := inTurns(round,
				func() error { return p.ours(ctx, exec, true) },
				func() error { return p.baseline(ctx, exec) })
			if err != nil {
				return nil, fmt.Errorf("batch %d: %w", round, err)
			}
		}
		if round%asideEvery != 0 {
			continue
		}
		if err := p.ours(ctx, false, false); err != nil {
			return nil, fmt.Errorf("batch %d: %w", round, err)
		}
	}
	for _, s := range []*samples{&p.socket, &p.rawSocket} {
		*s = (*s)[warmUp:]
	}
	for _, s := range []*samples{&p.unheld, &p.exec, &p.rawExec} {
		*s = (*s)[1:] // the first one was warm-up
	}
	w.Say("  medians of %d batches of %d, per second: through the socket %.0f (%.0f unheld), raw %.0f; with exec %.0f, raw with exec %.0f",
		batches, batch, p.socket.median(), p.unheld.median(), p.rawSocket.median(), p.exec.median(), p.rawExec.median())
	return map[string]figure{
		"add_parallel16":        {p.socket.median(), p.rawSocket.median()},
		"add_parallel16_unheld": {p.unheld.median(), p.rawSocket.median()},
		"add_parallel16_exec":   {p.exec.median(), p.rawExec.median()},
	}, nil
}

func (p *parallelRun) prepare(ctx context.Context) (err error) {
	if p.pods, p.board, err = p.w.boundPods(ctx, "parallel", batch); err != nil {
		return err
	}
	if p.config, err = p.w.pluginConfig(); err != nil {
		return err
	}
	if p.boxes, _, err = newSandboxes(2 * batch); err != nil {
		return err
	}
	if p.raw, err = newRawHost(); err != nil {
		return err
	}
	for range abreast {
		handle, err := p.raw.Netlink()
		if err != nil {
			return err
		}
		p.handles = append(p.handles, handle)
	}
	return nil
}

func (p *parallelRun) close() {
	for _, handle := range p.handles {
		handle.Close()
	}
	if p.raw != nil {
		p.raw.Close()
	}
	for _, s := range p.boxes {
		s.Close()
	}
}

// rate runs a batch with the workers and returns the number per second.
func rate(do func(worker, i int) error) (float64, error) {
	next := make(chan int, batch)
	for i := range batch {
		next <- i
	}
	close(next)
	errs := make([]error, batch)
	var workers sync.WaitGroup
	start := time.Now()
	for worker := range abreast {
		workers.Go(func() {
			for i := range next {
				errs[i] = do(worker, i)
			}
		})
	}
	workers.Wait()
	return batch / time.Since(start).Seconds(), firstOf(errs)
}

// ours plugs a batch through the daemon, and unplugs it again. With held the API server
// does no work for it meanwhile.
func (p *parallelRun) ours(ctx context.Context, exec, held bool) error {
	calls, ids := make([]cniCall, batch), make([]string, batch)
	for i := range calls {
		calls[i] = cniCall{verb: "ADD", containerID: containerID("par", i), sandbox: p.boxes[i], pod: p.pods[i], path: p.w.binDir()}
		ids[i] = calls[i].containerID
	}
	if err := quiet.Wait(ctx); err != nil {
		return err
	}
	release := func() {}
	if held {
		release = p.w.proxy.hold()
	}
	perSecond, err := rate(func(_, i int) error {
		return p.call(ctx, calls[i], exec)
	})
	release()
	if err != nil {
		return err
	}
	switch {
	case exec:
		p.exec = append(p.exec, perSecond)
	case held:
		p.socket = append(p.socket, perSecond)
	default:
		p.unheld = append(p.unheld, perSecond)
	}
	for i, call := range calls {
		if err := p.board.attached(ctx, p.pods[i].UID, call.containerID); err != nil {
			return err
		}
	}
	_, err = rate(func(_, i int) error {
		call := calls[i]
		call.verb = "DEL"
		return p.call(ctx, call, false)
	})
	if err != nil {
		return err
	}
	return p.w.recordsGone(ctx, ids...)
}

// call makes one call, with the plugin or without it.
func (p *parallelRun) call(ctx context.Context, c cniCall, exec bool) error {
	if exec {
		_, _, err := execution{ns: p.w.node().Namespace, path: p.w.program("fairlead-cni"), env: c.env(), stdin: p.config}.run(ctx)
		return err
	}
	return p.w.post(ctx, c.request(p.config))
}

// baseline plugs a batch with the netlink library alone, and unplugs it again.
func (p *parallelRun) baseline(ctx context.Context, exec bool) error {
	nothing := execution{ns: p.raw.Namespace, path: p.w.tool("noop"), stdin: p.config}
	if err := quiet.Wait(ctx); err != nil {
		return err
	}
	perSecond, err := rate(func(worker, i int) error {
		if exec {
			if _, _, err := nothing.run(ctx); err != nil {
				return err
			}
		}
		return p.raw.attach(p.handles[worker], p.boxes[batch+i], i)
	})
	if err != nil {
		return err
	}
	if exec {
		p.rawExec = append(p.rawExec, perSecond)
	} else {
		p.rawSocket = append(p.rawSocket, perSecond)
	}
	all := make([]int, batch)
	for i := range all {
		all[i] = i
	}
	return p.raw.detach(all...)
}
