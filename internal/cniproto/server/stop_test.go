package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"fairlead.dev/fairlead/internal/cniproto"
)

// A stop lets the requests finish that have begun.
func TestServerStop(t *testing.T) {
	begun, finish := make(chan struct{}), make(chan struct{})
	h := handlerFunc(func(ctx context.Context, _ cniproto.Request) ([]byte, error) {
		close(begun)
		select {
		case <-finish:
			return []byte("whole"), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
	t.Run("graceful", func(t *testing.T) {
		s := start(t, h, nil)
		var wg sync.WaitGroup
		wg.Go(func() {
			if body, err := s.do(add("a")); err != nil || string(body) != "whole" {
				t.Errorf("answer %q, %v", body, err)
			}
		})
		<-begun
		s.stop()
		awaitAway(t, s)
		close(finish)
		wg.Wait()
		if err := <-s.ended; err != nil {
			t.Errorf("stopped with %v", err)
		}
	})
	t.Run("request just arriving", func(t *testing.T) {
		begun = make(chan struct{})
		s := start(t, h, nil)
		conn, err := net.Dial("unix", s.socket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		message := encoded(t, add("a"))
		if _, err := io.WriteString(conn, message[:10]); err != nil {
			t.Fatal(err)
		}
		s.stop()
		awaitAway(t, s)
		if _, err := io.WriteString(conn, message[10:]); err != nil {
			t.Fatal(err)
		}
		if answer, err := io.ReadAll(conn); err != nil || !strings.HasSuffix(string(answer), "whole") {
			t.Errorf("answer %q, %v", answer, err)
		}
		if err := <-s.ended; err != nil {
			t.Errorf("stopped with %v", err)
		}
	})
	// A request that waits for others must not delay the next daemon, and so all other
	// requests.
	t.Run("ended by Leave", func(t *testing.T) {
		begun := make(chan struct{})
		left := make(chan struct{})
		s := start(t, handlerFunc(func(context.Context, cniproto.Request) ([]byte, error) {
			close(begun)
			<-left
			return nil, fmt.Errorf("ADD ended while it waited: %w", ErrResend)
		}), func(s *server) { s.leave, s.leaveAfter = func() { close(left) }, time.Millisecond })
		var wg sync.WaitGroup
		wg.Go(func() {
			if body, err := s.do(add("a")); !errors.Is(err, cniproto.ErrAway) {
				t.Errorf("answer %q, %v; want %v", body, err, cniproto.ErrAway)
			}
		})
		<-begun
		s.stop()
		if err := <-s.ended; err != nil {
			t.Errorf("stopped with %v", err)
		}
		wg.Wait()
	})
	t.Run("bounded", func(t *testing.T) {
		begun = make(chan struct{})
		finish = nil
		s := start(t, h, func(s *server) { s.stopTimeout = 20 * time.Millisecond })
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := s.do(add("a")); err == nil {
				t.Error("a request that never ends was answered")
			}
		})
		<-begun
		s.stop()
		if err := <-s.ended; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("stopped with %v, want %v", err, context.DeadlineExceeded)
		}
		wg.Wait()
	})
}

// awaitAway returns when the server accepts no more connections.
func awaitAway(t *testing.T, s running) {
	t.Helper()
	for range time.Tick(time.Millisecond) {
		conn, err := net.Dial("unix", s.socket)
		if err != nil {
			return
		}
		_ = conn.Close()
		if t.Context().Err() != nil {
			t.Fatal("still accepting")
		}
	}
}
