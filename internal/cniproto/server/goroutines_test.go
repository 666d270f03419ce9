package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"fairlead.dev/fairlead/internal/cniproto"
)

// A goroutine that serves a further connection uses no bytes of the previous one, and is
// not affected by its end.
func TestGoroutinesServeMoreThanOnce(t *testing.T) {
	gone := make(chan error, 1)
	r := start(t, handlerFunc(func(ctx context.Context, r cniproto.Request) ([]byte, error) {
		if r.ContainerID == "waits" {
			<-ctx.Done()
			gone <- ctx.Err()
		}
		return []byte(`{"id":"` + r.ContainerID + `"}`), ctx.Err()
	}), nil)
	for n := range 20 {
		if status, _ := raw(t, r.socket, post(2, "{}and more")); status != http.StatusBadRequest {
			t.Fatalf("round %d: a wrong request: status %d", n, status)
		}
		conn, err := net.Dial("unix", r.socket)
		if err != nil {
			t.Fatal(err)
		}
		body := add("waits").Encode()
		if _, err := conn.Write([]byte(post(len(body), string(body)))); err != nil {
			t.Fatal(err)
		}
		_ = conn.Close() // the plugin is gone
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Fatalf("round %d: the handler's context: %v", n, err)
		}
		id := fmt.Sprintf("c%d", n)
		if got, err := r.do(add(id)); err != nil || string(got) != `{"id":"`+id+`"}` {
			t.Fatalf("round %d: %s, %v", n, got, err)
		}
	}
}

// A goroutine ends if no further connection comes, or if the listener is closed.
func TestIdleGoroutinesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{handler: refuseAll(t), readTimeout: readTimeout}
		next := make(chan net.Conn)
		conn, peer := net.Pipe()
		_ = peer.Close()
		start := time.Now()
		s.serveConns(t.Context(), conn, next)
		if idle := time.Since(start); idle != idleTime {
			t.Errorf("ended after %v, want %v", idle, idleTime)
		}
		conn, peer = net.Pipe()
		_ = peer.Close()
		close(next)
		start = time.Now()
		s.serveConns(t.Context(), conn, next)
		if idle := time.Since(start); idle != 0 {
			t.Errorf("ended %v after the listener", idle)
		}
	})
}
