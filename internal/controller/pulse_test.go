package controller

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/controller/proof"
	"fairlead.dev/fairlead/test/prooftest"
)

// onRecord is an API server with one record and its Node, or a cache of it.
type onRecord struct {
	client.Client
	record *v1alpha1.PodAttachment
	node   *corev1.Node
	reads  int
}

func (o *onRecord) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	switch into := into.(type) {
	case *v1alpha1.PodAttachment:
		o.record.DeepCopyInto(into)
		return nil
	case *corev1.Node:
		if o.reads++; o.node != nil {
			o.node.DeepCopyInto(into)
			return nil
		}
	}
	return apierrors.NewNotFound(resource, key.Name)
}

func (*onRecord) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

// watched is a record that is judged as time passes. The cache equals the API server,
// unless a test sets it.
type watched struct {
	t           *testing.T
	cache, live *onRecord
	now         time.Time
	r           *Attachments
}

func watch(t *testing.T, record *v1alpha1.PodAttachment, node *corev1.Node) *watched {
	t.Helper()
	record.UID = "record"
	w := &watched{t: t, cache: &onRecord{record: record, node: node}, live: &onRecord{record: record, node: node}, now: prooftest.Now}
	w.r = New(Config{Client: w.cache, Live: w.live, NodeGrace: 5 * time.Minute, Now: func() time.Time { return w.now }})
	return w
}

// report makes the kubelet report, with the time of its own clock.
func (w *watched) report(clock time.Time, with ...func(*corev1.Node)) {
	node := w.live.node.DeepCopy()
	node.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(clock)
	for _, change := range with {
		change(node)
	}
	w.live.node, w.cache.node = node, node
}

// weigh lets time pass and checks the verdict.
func (w *watched) weigh(after time.Duration, want proof.Proof) {
	w.t.Helper()
	w.now = w.now.Add(after)
	v, _, err := w.r.releaser.prove(w.t.Context(), w.cache.record)
	if err != nil || v.Proof != want {
		w.t.Fatalf("after %v: proof %q, error %v, want %q: %s", w.now.Sub(prooftest.Now), v.Proof, err, want, v.Text)
	}
}

// own review 11: the API server's clock jumped between the writing of a record and of a
// Node, or the kubelet's clock was wrong. The order of the two stamps then freed the
// addresses of a pod in use, or kept them for ever.
func TestClocksOfOthers(t *testing.T) {
	const hour = time.Hour
	cases := map[string]func(t *testing.T){
		"the API server's clock jumps back an hour after the Node was made": func(t *testing.T) {
			w := watch(t, prooftest.Plugged(prooftest.NeverPlugged, prooftest.MadeForIt), prooftest.NodeOf(prooftest.UID("1"), prooftest.Made(0)))
			w.weigh(0, proof.None)
			for range 5 {
				w.report(w.now.Add(3 * time.Minute))
				w.weigh(3*time.Minute, proof.None)
			}
		},
		"the API server's clock jumps back an hour before the Node is made again": func(t *testing.T) {
			w := watch(t, prooftest.Plugged(prooftest.NeverPlugged, prooftest.MadeForIt), prooftest.NodeOf(prooftest.UID("2"), prooftest.Made(2*hour)))
			w.weigh(0, proof.None)
			w.report(w.now.Add(time.Minute))
			w.weigh(time.Minute, proof.None)
			w.weigh(5*time.Minute, proof.ByDeletion)
		},
		"the API server's clock jumps ahead an hour before the record is deleted": func(t *testing.T) {
			w := watch(t, prooftest.Plugged(prooftest.DeletedFor(-hour)), prooftest.NodeOf(prooftest.InBoot("boot-2")))
			w.weigh(time.Minute, proof.None)
			w.report(w.now)
			w.weigh(time.Minute, proof.None)
			w.weigh(proof.RebootLag, proof.ByReboot)
		},
		"the kubelet's clock is an hour ahead, and its last report is of the boot before": func(t *testing.T) {
			w := watch(t, prooftest.Plugged(), prooftest.NodeOf(prooftest.InBoot("boot-0"), prooftest.Reported(-hour)))
			w.weigh(0, proof.None)
			w.weigh(hour, proof.None)
			w.report(w.now.Add(hour), prooftest.InBoot("boot-1"))
			w.weigh(hour, proof.None)
		},
		"the kubelet's clock is an hour behind": func(t *testing.T) {
			w := watch(t, prooftest.Plugged(), prooftest.NodeOf(prooftest.InBoot("boot-2"), prooftest.Reported(hour)))
			w.weigh(0, proof.None)
			w.report(w.now.Add(-hour + time.Minute))
			w.weigh(time.Minute, proof.None)
			w.weigh(proof.RebootLag, proof.ByReboot)
		},
		"the kubelet's clock jumps back": func(t *testing.T) {
			w := watch(t, prooftest.Plugged(), prooftest.NodeOf(prooftest.InBoot("boot-2"), prooftest.Reported(0)))
			w.weigh(0, proof.None)
			w.report(w.now.Add(-hour))
			w.weigh(time.Minute, proof.None)
			w.weigh(proof.RebootLag, proof.ByReboot)
		},
		"the sandbox was made after the machine was heard of, and the kubelet reports the boot before": func(t *testing.T) {
			w := watch(t, prooftest.Plugged(), prooftest.NodeOf(prooftest.InBoot("boot-0"), prooftest.InState(corev1.ConditionUnknown)))
			w.weigh(0, proof.None)
			again := w.cache.record.DeepCopy()
			at := metav1.NewMicroTime(prooftest.Now.Add(time.Second))
			again.Status.Sandbox.ID, again.Status.Sandbox.AttachedAt = "d15ea5e", &at
			w.cache.record, w.live.record = again, again
			w.report(w.now, prooftest.InState(corev1.ConditionTrue))
			w.weigh(time.Minute, proof.None)
			w.weigh(proof.RebootLag, proof.None)
		},
		"the cache is behind": func(t *testing.T) {
			w := watch(t, prooftest.Plugged(), prooftest.NodeOf(prooftest.InBoot("boot-2"), prooftest.Reported(2*time.Minute)))
			w.live.node = prooftest.NodeOf(prooftest.InBoot("boot-2"), prooftest.Reported(time.Minute))
			w.weigh(0, proof.None)
			w.cache.node = w.live.node
			w.weigh(time.Minute, proof.None)
			w.weigh(proof.RebootLag, proof.None)
		},
		"the same machine registers again in the same boot": func(t *testing.T) {
			w := watch(t, prooftest.Plugged(prooftest.MadeForIt), prooftest.NodeOf(prooftest.UID("2"), prooftest.Made(0)))
			for range 5 {
				w.report(w.now.Add(3 * time.Minute))
				w.weigh(3*time.Minute, proof.None)
			}
		},
		"a Node is made again as a backup has it": func(t *testing.T) {
			w := watch(t, prooftest.Plugged(prooftest.NeverPlugged, prooftest.MadeForIt), prooftest.NodeOf(prooftest.UID("1"), prooftest.InState(corev1.ConditionFalse)))
			w.weigh(0, proof.None)
			w.live.node = prooftest.NodeOf(prooftest.UID("2"), prooftest.Reported(time.Minute))
			w.cache.node = w.live.node
			w.weigh(time.Minute, proof.None)
			w.weigh(6*time.Minute, proof.None)
		},
		"Kubernetes writes of a node that never reported": func(t *testing.T) {
			w := watch(t, prooftest.Plugged(prooftest.NeverPlugged, prooftest.MadeForIt), prooftest.NodeOf(prooftest.UID("2"), prooftest.InState("")))
			w.weigh(0, proof.None)
			w.report(w.now, prooftest.InState(corev1.ConditionUnknown))
			w.weigh(6*time.Minute, proof.None)
		},
		"a record of a former version, and an older Node": func(t *testing.T) {
			w := watch(t, prooftest.Plugged(prooftest.NeverPlugged), prooftest.NodeOf(prooftest.UID("2")))
			w.weigh(0, proof.None)
			w.report(w.now.Add(time.Minute))
			w.weigh(10*time.Minute, proof.None)
		},
		"a record of a former version, and a younger Node": func(t *testing.T) {
			w := watch(t, prooftest.Plugged(prooftest.NeverPlugged), prooftest.NodeOf(prooftest.UID("2"), prooftest.Made(time.Minute)))
			w.weigh(0, proof.None)
			w.report(w.now.Add(time.Minute))
			w.weigh(time.Minute, proof.None)
			w.weigh(5*time.Minute, proof.ByDeletion)
		},
	}
	for name, weigh := range cases {
		t.Run(name, weigh)
	}
}

// The API server is not asked about a node that is well for half a minute: nearly always
// the node confirms by then.
func TestNodesThatAreWellAreNotLookedAt(t *testing.T) {
	w := watch(t, prooftest.Plugged(), prooftest.NodeOf())
	w.weigh(0, proof.None)
	w.weigh(nodeAnswer/2, proof.None)
	if w.live.reads != 0 {
		t.Errorf("%d reads", w.live.reads)
	}
	w.weigh(nodeAnswer/2, proof.None)
	w.weigh(time.Minute, proof.None)
	if w.live.reads != 1 {
		t.Errorf("%d reads, want one", w.live.reads)
	}
	w.report(w.now, prooftest.InBoot("boot-2"))
	w.weigh(0, proof.None)
	w.weigh(proof.RebootLag, proof.ByReboot)
}
