package main

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// api is one resource of an API server whose state depends on the time since
// the start of the test.
type api struct {
	began time.Time
	// lists and watches report whether these work at a time.
	lists, watches func(since time.Duration) bool
	// hangs is how long a call takes that does not work.
	hangs time.Duration
}

var errAway = errors.New("the API server is away")

func (a *api) call(ctx context.Context, works func(time.Duration) bool) error {
	if works(time.Since(a.began)) {
		return nil
	}
	select {
	case <-ctx.Done():
	case <-time.After(a.hangs):
	}
	return errAway
}

func (a *api) list(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
	if err := a.call(ctx, a.lists); err != nil {
		return nil, err
	}
	version := 1 + int(time.Since(a.began)/time.Second) // something changes all the time
	return &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(version)}}, nil
}

// watch opens a watch on which nothing ever happens until it breaks.
func (a *api) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if err := a.call(ctx, a.watches); err != nil {
		return nil, err
	}
	if o.SendInitialEvents != nil {
		return nil, errors.New("lists are what this server has")
	}
	w := watch.NewFake()
	go func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for ctx.Err() == nil && a.watches(time.Since(a.began)) {
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
		w.Stop()
	}()
	return w, nil
}

func always(time.Duration) bool { return true }
func never(time.Duration) bool  { return false }

func from(start time.Duration) func(time.Duration) bool {
	return func(since time.Duration) bool { return since >= start }
}

// alternating works for a time, does not for as long, and so on.
func alternating(first bool) func(time.Duration) bool {
	const each = 90 * time.Second
	return func(since time.Duration) bool { return (since/each%2 == 0) == first }
}

// TestWatchHealth runs client-go's informers. A watch that fails is said to when
// it has done so for some minutes, and no other keeps that from being seen or
// adds to it.
func TestWatchHealth(t *testing.T) {
	const noTime = 1000 * time.Hour
	cases := []struct {
		name string
		apis []api
		// The process is healthy for as long as well, unhealthy from ill at the
		// latest, and healthy again from again on.
		well, ill, again time.Duration
	}{
		{"everything works", []api{{lists: always, watches: always}}, noTime, noTime, 0},
		{"calls fail at once", []api{{lists: never, watches: never}}, watchDeadline, 5 * time.Minute, noTime},
		{"calls are never answered", []api{{lists: never, watches: never, hangs: 30 * time.Second}}, watchDeadline, 7 * time.Minute, noTime},
		{"one of two fails", []api{{lists: always, watches: always}, {lists: never, watches: never}}, watchDeadline, 5 * time.Minute, noTime},
		{"it recovers before the deadline", []api{{lists: from(2 * time.Minute), watches: from(2 * time.Minute)}}, noTime, noTime, 0},
		{"it recovers later", []api{{lists: from(20 * time.Minute), watches: from(20 * time.Minute)}}, watchDeadline, 5 * time.Minute, 21*time.Minute + time.Second},
		{"two fail in turn and recover", []api{
			{lists: alternating(true), watches: alternating(true)},
			{lists: alternating(false), watches: alternating(false)},
		}, noTime, noTime, 0},
		// What changes is heard of once a minute.
		{"lists work and watches do not", []api{{lists: always, watches: never}}, noTime, noTime, 0},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWatchHealth(logr.Discard())
				for i := range tc.apis {
					tc.apis[i].began = time.Now()
					runInformer(t, w, &tc.apis[i])
				}
				const step = 5 * time.Second
				for since := time.Duration(0); since < time.Hour; since += step {
					time.Sleep(step) //nolint:forbidigo // the bubble's clock
					synctest.Wait()
					switch err := w.check(); {
					case err != nil && (since < tc.well || since >= tc.again):
						t.Fatalf("after %v: %v", since, err)
					case err != nil && (!errors.Is(err, errAway) || !strings.Contains(err.Error(), "ConfigMap")):
						t.Fatalf("after %v the error does not say what fails and why: %v", since, err)
					case err == nil && since >= tc.ill && since < tc.again-2*time.Minute: // until then a watch may have come back
						t.Fatalf("after %v nothing is said", since)
					}
				}
			})
		})
	}
}

func runInformer(t *testing.T, w *watchHealth, a *api) {
	t.Helper()
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{ListWithContextFunc: a.list, WatchFuncWithContext: a.watch}, &corev1.ConfigMap{}, 0, nil)
	if err := informer.SetWatchErrorHandlerWithContext(w.failed); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		informer.RunWithContext(ctx)
	}()
	t.Cleanup(func() { stop(); <-done })
}
