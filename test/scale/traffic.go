package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"

	"k8s.io/client-go/rest"
)

// traffic counts what one node's daemon sends to and gets from the API server.
type traffic struct {
	// received has the bytes from the network, encrypted and with all headers.
	received atomic.Int64
	// attachments and networks have the bytes of watched events.
	attachments, networks atomic.Int64
	writes, refused       atomic.Int64
}

// counted returns a configuration whose clients share one connection of their own.
func (t *traffic) counted(cfg *rest.Config) *rest.Config {
	own := rest.CopyConfig(cfg)
	own.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return countedConn{conn, &t.received}, nil
	}
	own.Wrap(func(next http.RoundTripper) http.RoundTripper { return countedCalls{next, t} })
	return own
}

type countedConn struct {
	net.Conn
	received *atomic.Int64
}

func (c countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.received.Add(int64(n))
	return n, err
}

// countedCalls counts writes, and the bytes of watches.
type countedCalls struct {
	next http.RoundTripper
	*traffic
}

// RoundTrip implements http.RoundTripper.
func (c countedCalls) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := c.next.RoundTrip(r)
	if r.Method != http.MethodGet {
		c.writes.Add(1)
	}
	if err != nil {
		return nil, err
	}
	if answer.StatusCode == http.StatusTooManyRequests {
		c.refused.Add(1)
	}
	if r.URL.Query().Get("watch") != "" {
		into := &c.attachments
		if strings.HasSuffix(r.URL.Path, "/nodenetworks") {
			into = &c.networks
		}
		answer.Body = countedBody{answer.Body, into}
	}
	return answer, nil
}

type countedBody struct {
	io.ReadCloser
	into *atomic.Int64
}

func (b countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.into.Add(int64(n))
	return n, err
}
