package netlab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// Listen opens a TCP listener inside the namespace, served from any goroutine
// of this process. An address with port 0 gets a free one.
func (n *Namespace) Listen(ctx context.Context, address string) (net.Listener, error) {
	var listener net.Listener
	err := n.Do(func() error {
		var err error
		// The address has numbers only, because names would be looked up on another
		// thread.
		listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen in the network namespace: %w", err)
	}
	return listener, nil
}

// Forward connects each connection of a listener with a new one from dial, and returns
// when ctx ends or the listener fails, with every connection closed. Nodes reach targets
// outside of the laboratory by it, such as an API server on the host's loopback. If dial
// fails, only that connection is closed.
func Forward(ctx context.Context, listener net.Listener, dial func(context.Context) (net.Conn, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	for {
		from, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("forward from %v: %w", listener.Addr(), err)
		}
		running.Go(func() {
			defer from.Close()
			to, err := dial(ctx)
			if err != nil {
				return
			}
			defer to.Close()
			splice(ctx, from, to)
		})
	}
}

// splice copies both ways until both sides are done or ctx ends.
func splice(ctx context.Context, a, b net.Conn) {
	defer context.AfterFunc(ctx, func() {
		a.Close()
		b.Close()
	})()
	var ways sync.WaitGroup
	ways.Go(func() { copyWay(a, b) })
	ways.Go(func() { copyWay(b, a) })
	ways.Wait()
}

// copyWay copies until from ends, and then half-closes to.
func copyWay(to, from net.Conn) {
	_, err := io.Copy(to, from)
	half, ok := to.(interface{ CloseWrite() error })
	if err != nil || !ok || errors.Is(half.CloseWrite(), net.ErrClosed) {
		to.Close()
	}
}
