package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/internal/cniproto"
)

const (
	// others is how many pods are plugged and unplugged all the time while one more ADD
	// is timed.
	others = 200
	// crowdSize is how many pods are plugged when the daemon's memory is read.
	crowdSize = 250
	// idleTime is how long the daemon is idle before that: it gives memory back within 10
	// seconds.
	idleTime = 12 * time.Second
)

// crowdRun is a node with many pods.
type crowdRun struct {
	w      *testbed
	pods   []*corev1.Pod
	board  *board
	config []byte
	boxes  []sandbox
	lives  []atomic.Int64 // number of each pod's sandboxes so far

	alone, beside, check, status samples
}

// crowd measures a node with many pods.
func crowd(ctx context.Context, w *testbed) (map[string]figure, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := w.serving(ctx); err != nil {
		return nil, err
	}
	c := &crowdRun{w: w, lives: make([]atomic.Int64, crowdSize)}
	var err error
	if c.pods, c.board, err = w.boundPods(ctx, "crowd", crowdSize); err != nil {
		return nil, err
	}
	if c.config, err = w.pluginConfig(); err != nil {
		return nil, err
	}
	if c.config, err = with(c.config, "cniVersion", json.RawMessage(`"1.1.0"`)); err != nil { // the version with STATUS
		return nil, err
	}
	boxes, closeBoxes, err := newSandboxes(crowdSize)
	if err != nil {
		return nil, err
	}
	defer closeBoxes()
	c.boxes = boxes
	if err := c.besideOthers(ctx); err != nil {
		return nil, err
	}
	for i, pod := range c.pods {
		if err := c.board.attached(ctx, pod.UID, c.call("ADD", i).containerID); err != nil {
			return nil, err
		}
	}
	if err := c.verbs(); err != nil {
		return nil, err
	}
	select {
	case <-time.After(idleTime):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	now, peak, err := memory(w.daemon.Cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	w.Say("  medians: CHECK %.2f ms (p99 %.2f), STATUS %.2f (p99 %.2f), of %d; ADD alone %.2f ms, beside %d others %.1f; the daemon %.0f MB, %.0f at its most",
		c.check.median(), c.check.percentile(99), c.status.median(), c.status.percentile(99), len(c.check), c.alone.median(), others, c.beside.median(), now, peak)
	ids := make([]string, crowdSize)
	for i := range ids {
		ids[i] = c.call("DEL", i).containerID
		if _, err := c.do("DEL", i, nil); err != nil {
			return nil, err
		}
	}
	return map[string]figure{
		"check_ms":           {c.check.median(), 5},
		"status_ms":          {c.status.median(), 1},
		"daemon_rss_250_mb":  {now, 40},
		"add_beside_200_p50": {c.beside.median(), c.alone.median()},
		"add_beside_200_p99": {c.beside.percentile(99), c.alone.percentile(99)},
	}, w.recordsGone(ctx, ids...)
}

// besideOthers times ADDs one after the other, alone and while 200 other pods are plugged
// and unplugged. At the end every pod is plugged.
func (c *crowdRun) besideOthers(ctx context.Context) error {
	rounds := c.w.samples(6, 1)
	last := others + c.w.samples(crowdSize-others, 4)
	for _, into := range []*samples{&c.alone, &c.beside} {
		stop, begun := make(chan struct{}), make(chan struct{}, others)
		errs := make([]error, others)
		var crowd sync.WaitGroup
		if into == &c.beside {
			release := c.w.proxy.hold()
			for i := range others {
				crowd.Go(func() { errs[i] = c.live(i, begun, stop) })
			}
			for range others {
				<-begun
			}
			defer release()
		}
		for range rounds {
			for i := others; i < last; i++ {
				took, err := c.do("ADD", i, nil)
				if err != nil {
					return err
				}
				into.addTime(took)
			}
			for i := others; i < last; i++ {
				if _, err := c.do("DEL", i, nil); err != nil {
					return err
				}
				c.lives[i].Add(1)
			}
		}
		close(stop)
		crowd.Wait()
		if err := firstOf(errs); err != nil {
			return err
		}
	}
	for i := others; i < crowdSize; i++ {
		if _, err := c.do("ADD", i, nil); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// live plugs and unplugs a pod until stop is closed; then the pod stays plugged. It sends
// to begun when the first ADD is in progress.
func (c *crowdRun) live(i int, begun chan<- struct{}, stop <-chan struct{}) error {
	begun <- struct{}{}
	for {
		if _, err := c.do("ADD", i, nil); err != nil {
			return err
		}
		select {
		case <-stop:
			return nil
		default:
		}
		if _, err := c.do("DEL", i, nil); err != nil {
			return err
		}
		c.lives[i].Add(1)
	}
}

// verbs times CHECK and STATUS.
func (c *crowdRun) verbs() error {
	for i := range c.w.samples(crowdSize, 100) {
		added, err := c.answer("ADD", i, nil) // again: the same answer
		if err != nil {
			return err
		}
		took, err := c.do("CHECK", i, added)
		if err != nil {
			return err
		}
		c.check.addTime(took)
		if took, err = c.do("STATUS", i, nil); err != nil {
			return err
		}
		c.status.addTime(took)
	}
	return nil
}

func (c *crowdRun) call(verb string, i int) cniCall {
	id := fmt.Sprintf("crowd%03d%056d", i, c.lives[i].Load())
	return cniCall{verb: verb, containerID: id, sandbox: c.boxes[i], pod: c.pods[i], path: c.w.binDir()}
}

// do makes a call through the socket, without exec, and returns how long it took.
func (c *crowdRun) do(verb string, i int, prevResult json.RawMessage) (time.Duration, error) {
	start := time.Now()
	_, err := c.answer(verb, i, prevResult)
	return time.Since(start), err
}

func (c *crowdRun) answer(verb string, i int, prevResult json.RawMessage) ([]byte, error) {
	call := c.call(verb, i)
	config := c.config
	if prevResult != nil {
		var err error
		if config, err = with(config, "prevResult", prevResult); err != nil {
			return nil, err
		}
	}
	client := cniproto.Client{Socket: c.w.cniSocket()}
	request := call.request(config)
	answer, err := client.Do(time.Now().Add(stepTimeout), &request)
	if err != nil {
		return nil, fmt.Errorf("%s of pod %d: %w", verb, i, err)
	}
	return answer, nil
}

// with returns a configuration with one more field.
func with(config []byte, key string, value json.RawMessage) ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(config, &fields); err != nil {
		return nil, err
	}
	fields[key] = value
	return json.Marshal(fields)
}
