package leader

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// redialPause lies between two connections to a leader's beacon.
const redialPause = 250 * time.Millisecond

// watch learns that a leader's process has ended, long before its Lease runs out.
//
// A leader is dead when its beacon says that it does not lead, or another process
// has its address, or, once it was met there, nobody listens there any more; and
// when the Lease is not renewed for two periods after that. Whoever cannot be
// reached may live: then the Lease has to run out.
type watch struct {
	lock   resourcelock.Interface
	settle time.Duration
	// wake is called when a death is found out.
	wake func()
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu     sync.Mutex
	holder string
	cancel context.CancelFunc
	ended  chan struct{} // when what follows the holder has returned
	// dead is the Lease, as it was, of a leader whose process has ended.
	dead []byte
}

func newWatch(lock resourcelock.Interface, retry time.Duration, wake func()) *watch {
	dialer := &net.Dialer{
		Timeout:         answerTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	return &watch{lock: lock, settle: 2 * retry, wake: wake, dial: dialer.DialContext, cancel: func() {}}
}

// observe follows the holder of the Lease from now on, and nobody when it is empty.
func (w *watch) observe(ctx context.Context, holder string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if holder == w.holder {
		return
	}
	w.cancel()
	w.holder, w.dead, w.cancel = holder, nil, func() {}
	if addressOf(holder) == "" {
		return
	}
	before, ended := w.ended, make(chan struct{})
	ctx, w.cancel = context.WithCancel(context.WithoutCancel(ctx)) // it outlives a candidacy
	w.ended = ended
	go func() {
		defer close(ended)
		if before != nil {
			<-before // the lock is for one user at a time
		}
		w.follow(ctx, holder)
	}()
}

// stop follows nobody any more, and waits until that is so.
func (w *watch) stop() {
	w.observe(context.Background(), "")
	w.mu.Lock()
	ended := w.ended
	w.mu.Unlock()
	if ended != nil {
		<-ended
	}
}

// isDead reports whether a Lease, as it is, is that of a leader who is dead.
func (w *watch) isDead(raw []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dead != nil && bytes.Equal(w.dead, raw)
}

// follow keeps a connection to the holder's beacon, and judges when it ends.
func (w *watch) follow(ctx context.Context, holder string) {
	met := false
	for ctx.Err() == nil {
		switch w.meet(ctx, holder) {
		case led:
			met = true
		case leadsNoMore:
			w.judge(ctx, holder)
		case nobody:
			if met {
				w.judge(ctx, holder)
			}
		case unknown:
		}
		pause(ctx, redialPause)
	}
}

// encounter is what came of a connection to a leader's beacon.
type encounter int

const (
	// unknown: it could not be reached, or did not answer.
	unknown encounter = iota
	// led: it led, and the connection has ended since.
	led
	// leadsNoMore: it answered that it does not lead, or another process did.
	leadsNoMore
	// nobody listens there.
	nobody
)

// meet connects to the holder's beacon, for as long as it leads.
func (w *watch) meet(ctx context.Context, holder string) encounter {
	conn, err := w.dial(ctx, "tcp", addressOf(holder))
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nobody
	}
	if err != nil {
		return unknown
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer conn.Close() //nolint:errcheck // nothing was written
	_ = conn.SetReadDeadline(time.Now().Add(answerTimeout))
	from := bufio.NewReaderSize(conn, 64)
	line, err := from.ReadSlice('\n')
	who, is, ok := strings.Cut(string(line), " ")
	switch {
	case err != nil, !ok, len(who) != len(digest(holder)):
		return unknown
	case who != digest(holder), " "+is != answerLeads:
		return leadsNoMore
	}
	_ = conn.SetReadDeadline(time.Time{})
	_, _ = from.ReadByte() // until one of the two has ended
	return led
}

// judge notes that the holder is dead unless it renews the Lease.
func (w *watch) judge(ctx context.Context, holder string) {
	before, err := w.read(ctx, holder)
	if err != nil || before == nil {
		return
	}
	pause(ctx, w.settle)
	after, err := w.read(ctx, holder)
	if err != nil || !bytes.Equal(before, after) || ctx.Err() != nil {
		return
	}
	w.mu.Lock()
	told := bytes.Equal(w.dead, after)
	w.dead = after
	w.mu.Unlock()
	if !told {
		logr.FromContextOrDiscard(ctx).Info("the leader's process has ended, taking its Lease", "leader", holder)
		w.wake()
	}
}

// read returns the Lease; nil when somebody else has it by now.
func (w *watch) read(ctx context.Context, holder string) ([]byte, error) {
	record, raw, err := w.lock.Get(ctx)
	if err != nil || record.HolderIdentity != holder {
		return nil, err
	}
	return raw, nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// watchedLock tells the watch who has the Lease, and the elector that the Lease of
// a dead leader is free. A leader that finds somebody else in the Lease leads no
// more.
type watchedLock struct {
	resourcelock.Interface
	watch     *watch
	leads     func() bool
	overtaken func()
	// ctx has the logger of the candidacy.
	ctx context.Context //nolint:containedctx // as above
}

// Get is of resourcelock.Interface.
func (l *watchedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	if err != nil {
		return record, raw, err
	}
	if record.HolderIdentity == l.Identity() {
		l.watch.observe(l.ctx, "") //nolint:contextcheck // it outlives this call
		return record, raw, nil
	}
	l.watch.observe(l.ctx, record.HolderIdentity) //nolint:contextcheck // as above
	switch {
	case record.HolderIdentity != "" && l.leads():
		l.overtaken()
	case l.watch.isDead(raw):
		free := *record
		free.HolderIdentity = ""
		return &free, raw, nil
	}
	return record, raw, nil
}
