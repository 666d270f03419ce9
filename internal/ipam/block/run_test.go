package block

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/test/blocktest"
)

func TestStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		api.Hook(slow(time.Hour))
		s := run(t, api, Config{})
		p := shared(t, "10.0.0.0/24")
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				if _, err := s.Take(context.Background(), p, Request{Holder: holder(i % 5)}); !errors.Is(err, ErrStopped) {
					t.Errorf("Take() = %v", err)
				}
			})
		}
		synctest.Wait()
		s.stop()
		wg.Wait()
		_, err := s.Take(t.Context(), p, Request{Holder: holder(1)})
		for what, err := range map[string]error{
			"Take": err, "Free": s.Free(t.Context(), holder(1), "default", nil), "DropEmpty": s.DropEmpty(t.Context(), "node-1"),
		} {
			if !errors.Is(err, ErrStopped) || !errors.Is(err, fault.ErrUnavailable) {
				t.Errorf("%s after the end = %v", what, err)
			}
		}
		if s.Run(t.Context()) == nil {
			t.Error("it ran twice")
		}
	})
}

func TestTakeBeforeRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(blocktest.NewAPI(), Config{})
		p := shared(t, "10.0.0.0/24")
		got := make(chan []string)
		go func() { got <- mustTake(t, s, p, holder(1)) }()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		if len(<-got) != 1 {
			t.Error("no address")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
