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

// redialPause is the pause between two connections to a leader's beacon.
const redialPause = 250 * time.Millisecond

// watch detects that a leader's process has ended, long before its Lease expires.
//
// A leader counts as dead on two conditions. First, its beacon answers that it does not
// lead, another process answers at its address, or, after an earlier connection, the
// address refuses connections. Second, the Lease is not renewed for two retry periods
// after that. A leader that is only unreachable may live: its Lease has to expire.
type watch struct {
	lock      resourcelock.Interface
	deadAfter time.Duration
	// wake is called when a leader is found dead.
	wake func()
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu     sync.Mutex
	holder string
	cancel context.CancelFunc
	ended  chan struct{} // closed when follow has returned
	// dead is the raw Lease of a leader whose process has ended.
	dead []byte
}

func newWatch(lock resourcelock.Interface, retry time.Duration, wake func()) *watch {
	dialer := &net.Dialer{
		Timeout:         answerTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	return &watch{lock: lock, deadAfter: 2 * retry, wake: wake, dial: dialer.DialContext, cancel: func() {}}
}

// observe follows the given holder of the Lease from now on. If holder is empty, it
// stops following.
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

// stop stops following, and waits until the goroutine has ended.
func (w *watch) stop() {
	w.observe(context.Background(), "")
	w.mu.Lock()
	ended := w.ended
	w.mu.Unlock()
	if ended != nil {
		<-ended
	}
}

// isDead reports whether raw is the Lease of a dead leader, without a later renewal.
func (w *watch) isDead(raw []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dead != nil && bytes.Equal(w.dead, raw)
}

// follow keeps a connection to the holder's beacon, and calls judge when it ends.
func (w *watch) follow(ctx context.Context, holder string) {
	met := false
	for ctx.Err() == nil {
		switch w.connect(ctx, holder) {
		case wasLeading:
			met = true
		case notLeading:
			w.checkDead(ctx, holder)
		case refusedConn:
			if met {
				w.checkDead(ctx, holder)
			}
		case unknown:
		}
		pause(ctx, redialPause)
	}
}

// outcome is the result of a connection to a leader's beacon.
type outcome int

const (
	// unknown: the beacon was unreachable or did not answer.
	unknown outcome = iota
	// wasLeading: the process led, and the connection has ended since.
	wasLeading
	// notLeading: the process does not lead, or another process answered.
	notLeading
	// refusedConn: the address refused the connection.
	refusedConn
)

// connect connects to the holder's beacon, and returns when the connection ends.
func (w *watch) connect(ctx context.Context, holder string) outcome {
	conn, err := w.dial(ctx, "tcp", addressOf(holder))
	if errors.Is(err, syscall.ECONNREFUSED) {
		return refusedConn
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
		return notLeading
	}
	_ = conn.SetReadDeadline(time.Time{})
	_, _ = from.ReadByte() // until one side ends the connection
	return wasLeading
}

// checkDead marks the holder as dead unless it renews the Lease.
func (w *watch) checkDead(ctx context.Context, holder string) {
	before, err := w.read(ctx, holder)
	if err != nil || before == nil {
		return
	}
	pause(ctx, w.deadAfter)
	after, err := w.read(ctx, holder)
	if err != nil || !bytes.Equal(before, after) || ctx.Err() != nil {
		return
	}
	w.mu.Lock()
	known := bytes.Equal(w.dead, after)
	w.dead = after
	w.mu.Unlock()
	if !known {
		logr.FromContextOrDiscard(ctx).Info("the leader's process has ended, taking its Lease", "leader", holder)
		w.wake()
	}
}

// read returns the Lease; nil if another process has it by now.
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

// watchedLock reports the holder of the Lease to the watch, and presents the Lease of a
// dead leader to the elector as free. A leader that finds another holder in the Lease
// stops leading.
type watchedLock struct {
	resourcelock.Interface
	watch     *watch
	leads     func() bool
	overtaken func()
	// ctx has the logger of the candidacy.
	ctx context.Context //nolint:containedctx // as above
}

// Get implements resourcelock.Interface.
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
