package controller

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/controller/proof"
	"fairlead.dev/fairlead/test/prooftest"
)

const lossGrace = 5 * time.Minute

// lostNode is an API server with one record, which is being deleted, and with its Node or
// without.
type lostNode struct {
	t      *testing.T
	record *v1alpha1.PodAttachment
	node   *corev1.Node
	writes int
}

// replica is a controller with a cache of its own.
type replica struct {
	client.Client // panics where the test has no answer
	api           *lostNode
	r             *Attachments
	queue         workqueue.TypedRateLimitingInterface[reconcile.Request]
	record        *v1alpha1.PodAttachment
	node          *corev1.Node
}

func newLostNode(t *testing.T) *lostNode {
	t.Helper()
	return &lostNode{t: t, node: prooftest.NodeOf(prooftest.UID("1")), record: prooftest.Plugged(prooftest.MadeForIt, func(r *v1alpha1.PodAttachment) {
		r.Namespace, r.Name, r.UID, r.Spec.PodName = "ns", "web-1", "record", "web"
	})}
}

// start starts a replica that has read all objects; its clock is ahead.
func (a *lostNode) start(ahead time.Duration) *replica {
	p := &replica{api: a, queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())}
	a.t.Cleanup(p.queue.ShutDown)
	p.r = New(Config{Client: p, Live: liveOf{a}, NodeGrace: lossGrace, Turns: NewTurns(1), Now: func() time.Time { return time.Now().Add(ahead) }})
	p.node, p.record = a.node, a.record
	p.r.AttachmentEvents().Create(a.t.Context(), event.CreateEvent{Object: p.record, IsInInitialList: true}, p.queue)
	return p
}

// sync shows a replica all changes, the Node's first.
func (p *replica) sync() {
	ctx := p.api.t.Context()
	if was, is := p.node, p.api.node; was != is {
		if p.node = is; is != nil {
			p.r.terminatingOfNode(ctx, is)
		} else {
			p.r.terminatingOfNode(ctx, was)
		}
	}
	if was, is := p.record, p.api.record; was != is {
		p.record = is
		p.r.AttachmentEvents().Update(ctx, event.UpdateEvent{ObjectOld: was, ObjectNew: is}, p.queue)
	}
}

// weigh makes a replica look for proof as the leader, and show the reason of the wait.
func (p *replica) weigh(want proof.Proof) (again time.Duration) {
	t := p.api.t
	t.Helper()
	v, record, err := p.r.releaser.prove(t.Context(), p.record)
	if err != nil || v.Proof != want {
		t.Fatalf("proof %q, %v, want %q: %s", v.Proof, err, want, v.Text)
	}
	if v.Proof == proof.None {
		if _, err := p.r.releaser.awaitNode(t.Context(), record, v); err != nil {
			t.Fatal(err)
		}
		p.sync()
	}
	return v.Due
}

// deleteNode deletes the Node; restore creates it again for the same machine in the same
// boot.
func (a *lostNode) deleteNode() { a.node = nil }

func (a *lostNode) restore() { a.node = prooftest.NodeOf(prooftest.UID("2")) }

func (a *lostNode) get(key client.ObjectKey, o client.Object, record *v1alpha1.PodAttachment, node *corev1.Node) error {
	switch o := o.(type) {
	case *v1alpha1.PodAttachment:
		record.DeepCopyInto(o)
		return nil
	case *corev1.Node:
		if node != nil {
			node.DeepCopyInto(o)
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

func (p *replica) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	return p.api.get(key, o, p.record, p.node)
}

func (p *replica) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if l, ok := list.(*v1alpha1.PodAttachmentList); ok {
		l.Items = []v1alpha1.PodAttachment{*p.record}
	}
	return nil
}

func (p *replica) Status() client.SubResourceWriter { return statusOf{nil, p.api} }

type statusOf struct {
	client.SubResourceWriter
	a *lostNode
}

func (s statusOf) Patch(_ context.Context, o client.Object, _ client.Patch, _ ...client.SubResourcePatchOption) error {
	s.a.writes++
	s.a.record = o.(*v1alpha1.PodAttachment).DeepCopy()
	return nil
}

// liveOf reads from the API server.
type liveOf struct{ a *lostNode }

func (l liveOf) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	return l.a.get(key, o, l.a.record, l.a.node)
}

func (liveOf) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

// lossAt returns the time that the record's condition shows for the loss.
func (a *lostNode) lossAt() string {
	said, _ := proof.Loss(a.record)
	return said
}

// The grace of a deleted Node began for a leader that died. It goes on with the standby,
// which saw the same. With any clocks it is never over before one process has measured it
// in full.
func TestGraceOutlivesItsLeader(t *testing.T) {
	cases := map[string]func(t *testing.T){
		"a standby goes on": func(t *testing.T) {
			a := newLostNode(t)
			leader, standby := a.start(0), a.start(0)
			a.deleteNode()
			leader.sync()
			standby.sync()
			leader.weigh(proof.None)
			standby.sync()
			<-time.After(4 * time.Minute)
			writes, said := a.writes, a.lossAt()
			standby.r.BeginTerm()
			if again := standby.weigh(proof.None); again != time.Minute {
				t.Errorf("it waits %v, want the minute that is left", again)
			}
			if a.writes != writes || a.lossAt() != said {
				t.Errorf("it wrote %d times, and the record shows %q in place of %q", a.writes-writes, a.lossAt(), said)
			}
			<-time.After(time.Minute - time.Second)
			standby.weigh(proof.None)
			<-time.After(time.Second)
			standby.weigh(proof.ByDeletion)
		},
		"clocks of leaders are wrong": func(t *testing.T) {
			for _, wrong := range []time.Duration{-24 * time.Hour, -time.Hour, time.Hour, 24 * time.Hour} {
				a := newLostNode(t)
				leader, standby := a.start(wrong), a.start(-wrong)
				a.deleteNode()
				leader.sync()
				standby.sync()
				leader.weigh(proof.None)
				standby.sync()
				<-time.After(lossGrace - time.Minute)
				standby.r.BeginTerm()
				if again := standby.weigh(proof.None); again != time.Minute {
					t.Errorf("a clock is wrong by %v: %v are left, want a minute", wrong, again)
				}
				<-time.After(time.Minute)
				standby.weigh(proof.ByDeletion)
			}
		},
		"a process that begins at the failover waits for all of it": func(t *testing.T) {
			a := newLostNode(t)
			leader := a.start(-24 * time.Hour)
			a.deleteNode()
			leader.sync()
			leader.weigh(proof.None)
			<-time.After(4 * time.Minute)
			next := a.start(0)
			next.r.BeginTerm()
			if again := next.weigh(proof.None); again != lossGrace {
				t.Errorf("it waits %v, want %v", again, lossGrace)
			}
			<-time.After(4 * time.Minute) // and dies; the third has seen that
			third := a.start(24 * time.Hour)
			<-time.After(lossGrace - time.Second)
			third.r.BeginTerm()
			third.weigh(proof.None)
			<-time.After(time.Second)
			third.weigh(proof.ByDeletion)
		},
		"a condition that claims to be old": func(t *testing.T) {
			a := newLostNode(t)
			leader := a.start(0)
			a.deleteNode()
			leader.sync()
			leader.weigh(proof.None)
			c := meta.FindStatusCondition(a.record.Status.Conditions, v1alpha1.ConditionReleased)
			c.LastTransitionTime = metav1.NewTime(time.Now().Add(-1000 * time.Hour))
			c.Message = strings.ReplaceAll(c.Message, a.lossAt(), "1999-12-31T23:59:59Z")
			next := a.start(0)
			next.r.BeginTerm()
			if again := next.weigh(proof.None); again != lossGrace {
				t.Errorf("it waits %v, want %v", again, lossGrace)
			}
		},
		"the standby saw the machine again": func(t *testing.T) {
			a := newLostNode(t)
			leader, standby := a.start(0), a.start(0)
			a.deleteNode()
			leader.sync()
			standby.sync()
			leader.weigh(proof.None)
			standby.sync()
			<-time.After(4 * time.Minute)
			a.restore() // and the leader dies before the record shows it
			standby.sync()
			<-time.After(time.Minute)
			a.deleteNode()
			standby.sync()
			standby.r.BeginTerm()
			if again := standby.weigh(proof.None); again != lossGrace {
				t.Errorf("it waits %v, want %v", again, lossGrace)
			}
		},
		"only the leader saw the machine again": func(t *testing.T) {
			a := newLostNode(t)
			leader, standby := a.start(0), a.start(0)
			a.deleteNode()
			leader.sync()
			standby.sync()
			leader.weigh(proof.None)
			standby.sync() // and nothing more
			<-time.After(4 * time.Minute)
			a.restore()
			leader.sync()
			leader.weigh(proof.None)
			a.deleteNode()
			leader.sync()
			leader.weigh(proof.None)
			<-time.After(time.Minute)
			standby.r.BeginTerm() // before its caches have caught up
			if again := standby.weigh(proof.None); again < lossGrace-time.Minute {
				t.Errorf("it waits %v, want no less than what the machine has been gone for", again)
			}
			<-time.After(lossGrace - time.Minute - time.Second)
			standby.weigh(proof.None)
		},
		"a leader leads again": func(t *testing.T) {
			a := newLostNode(t)
			leader, other := a.start(0), a.start(0)
			a.deleteNode()
			leader.sync()
			leader.weigh(proof.None)
			other.sync()
			<-time.After(time.Minute)
			other.r.BeginTerm()
			other.weigh(proof.None)
			<-time.After(time.Minute)
			leader.r.BeginTerm()
			if again := leader.weigh(proof.None); again != lossGrace-2*time.Minute {
				t.Errorf("it waits %v, want what is left of %v after two minutes", again, lossGrace)
			}
		},
		"what a former term found and never said": func(t *testing.T) {
			a := newLostNode(t)
			leader := a.start(0)
			a.deleteNode()
			leader.sync()
			if v, _, err := leader.r.releaser.prove(t.Context(), leader.record); err != nil || !v.Lost {
				t.Fatalf("%+v, %v", v, err)
			}
			<-time.After(lossGrace)
			leader.r.BeginTerm()
			if again := leader.weigh(proof.None); again != lossGrace {
				t.Errorf("it waits %v, want %v", again, lossGrace)
			}
		},
	}
	for name, run := range cases {
		t.Run(name, func(t *testing.T) { synctest.Test(t, run) })
	}
}
