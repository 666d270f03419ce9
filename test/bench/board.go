package main

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// shownRecord is the state of one record that the watches have shown.
type shownRecord struct {
	at     time.Time // when it was first shown
	record *v1alpha1.PodAttachment
	gone   bool
}

// board has the records that the watches of some nodes have shown, by the UID of the pod
// in the record.
type board struct {
	mu      sync.Mutex
	records map[types.UID]*shownRecord
	changed chan struct{} // closed and replaced at each change
	failure error
}

// watchNodes watches the records of some nodes, each as its daemon would, until ctx ends.
// raw watches the objects of the baseline.
func (k *kube) watchNodes(ctx context.Context, raw bool, nodes ...string) (*board, error) {
	b := &board{records: map[types.UID]*shownRecord{}, changed: make(chan struct{})}
	for _, node := range nodes {
		f := &watcher{kube: k, board: b, node: node, raw: raw}
		w, err := f.watch(ctx)
		if err != nil {
			return nil, err
		}
		go f.run(ctx, w)
	}
	return b, nil
}

// watcher writes the records of one node on a board.
type watcher struct {
	kube  *kube
	board *board
	node  string
	raw   bool
	seen  string // the resource version of the last event
}

// watch begins a watch, or continues after the last event.
func (f *watcher) watch(ctx context.Context) (watch.Interface, error) {
	var list client.ObjectList = &v1alpha1.PodAttachmentList{}
	if f.raw {
		list = &rawAttachmentList{}
	}
	w, err := f.kube.Watch(ctx, list, &client.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", f.node),
		Raw:           &metav1.ListOptions{ResourceVersion: f.seen},
	})
	if err != nil {
		return nil, fmt.Errorf("watch the records of %s: %w", f.node, err)
	}
	return w, nil
}

// run watches until ctx ends. The API server ends a watch that falls behind; it is
// continued, as in informers.
func (f *watcher) run(ctx context.Context, w watch.Interface) {
	for {
		for event := range w.ResultChan() {
			at := time.Now()
			if s, ok := event.Object.(*metav1.Status); ok && s.Code == http.StatusGone {
				f.seen = "" // too old for the API server's memory: it sends all records again
				break
			}
			if o, ok := event.Object.(client.Object); ok {
				f.seen = o.GetResourceVersion()
			}
			f.board.note(event, at)
		}
		w.Stop()
		if ctx.Err() != nil {
			return
		}
		var err error
		if w, err = f.watch(ctx); err != nil {
			f.board.fail(err)
			return
		}
	}
}

func (b *board) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failure = err
	b.tell()
}

func (b *board) tell() {
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *board) note(event watch.Event, at time.Time) {
	var record *v1alpha1.PodAttachment
	switch o := event.Object.(type) {
	case *v1alpha1.PodAttachment:
		record = o
	case *rawAttachment:
		record = &o.PodAttachment
	case *metav1.Status:
		b.fail(fmt.Errorf("a watch of records failed: %s", o.Message))
		return
	default:
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.records[record.Spec.PodUID]
	if s == nil {
		s = &shownRecord{at: at}
		b.records[record.Spec.PodUID] = s
	}
	s.record, s.gone = record, event.Type == watch.Deleted
	b.tell()
}

// until waits until look accepts the shown records. look is called with the lock held and
// must be quick, because it runs beside the measured programs.
func (b *board) until(ctx context.Context, what string, look func(records map[types.UID]*shownRecord) bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stepTimeout, fmt.Errorf("not within %v", stepTimeout))
	defer cancel()
	for {
		b.mu.Lock()
		done, changed, failure, n := look(b.records), b.changed, b.failure, len(b.records)
		b.mu.Unlock()
		if done || failure != nil {
			return failure
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s, with %d records shown: %w", what, n, context.Cause(ctx))
		}
	}
}

// record waits for the record of a pod.
func (b *board) record(ctx context.Context, uid types.UID) (*v1alpha1.PodAttachment, error) {
	var record *v1alpha1.PodAttachment
	err := b.until(ctx, "a pod's record", func(records map[types.UID]*shownRecord) bool {
		s := records[uid]
		if s != nil && !s.gone {
			record = s.record
		}
		return record != nil
	})
	return record, err
}

// attached waits until the node has written that a sandbox holds the pod's
// interfaces.
func (b *board) attached(ctx context.Context, uid types.UID, containerID string) error {
	return b.until(ctx, "a pod's record to name its sandbox", func(records map[types.UID]*shownRecord) bool {
		s := records[uid]
		return s != nil && s.record.Status.Sandbox != nil && s.record.Status.Sandbox.ID == containerID
	})
}

// gone waits until the record of a pod is gone.
func (b *board) gone(ctx context.Context, uid types.UID) error {
	return b.until(ctx, "a pod's record to go", func(records map[types.UID]*shownRecord) bool {
		s := records[uid]
		return s != nil && s.gone
	})
}

// firstSeen returns when each record was first shown.
func (b *board) firstSeen() map[types.UID]time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make(map[types.UID]time.Time, len(b.records))
	for uid, s := range b.records {
		out[uid] = s.at
	}
	return out
}
