package report

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// At most n items of a queue are handled at once, a failed item is tried again, and no
// goroutine outlives its item: idle workers kept 4 MB of stacks.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		q := NewQueue[int]("test")
		for i := range 5 {
			q.Add(i)
		}
		var mu sync.Mutex
		handled, now, most := map[int]int{}, 0, 0
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			RunQueue(ctx, q, 2, func(_ context.Context, i int) error {
				mu.Lock()
				handled[i]++
				now++
				most = max(most, now)
				first := handled[i] == 1
				mu.Unlock()
				time.Sleep(time.Millisecond) //nolint:forbidigo // the bubble's clock
				mu.Lock()
				defer mu.Unlock()
				now--
				if i == 3 && first {
					return errors.New("not yet")
				}
				return nil
			})
		}()
		time.Sleep(time.Minute) //nolint:forbidigo // the bubble's clock
		synctest.Wait()
		if diff := cmp.Diff(map[int]int{0: 1, 1: 1, 2: 1, 3: 2, 4: 1}, handled); diff != "" || most != 2 {
			t.Errorf("%d at once, want 2; handled (-want +got):\n%s", most, diff)
		}
		if idle := goroutinesIn("report.RunQueue["); idle != 1 {
			t.Errorf("%d goroutines wait for work, want 1", idle)
		}
		cancel()
		<-ended
	})
}

// goroutinesIn returns the number of goroutines with a function on their stack.
func goroutinesIn(function string) int {
	buf := make([]byte, 1<<20)
	n := 0
	for trace := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(trace, function) {
			n++
		}
	}
	return n
}
