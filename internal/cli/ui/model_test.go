package ui

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/nad"
	"fairlead.dev/fairlead/internal/pod"
)

var now = time.Date(2026, 3, 2, 9, 30, 0, 0, time.UTC)

// testViews returns views in a few words.
func testViews() Views {
	return Views{
		Pod: func(record *v1alpha1.PodAttachment, p *corev1.Pod, warning *eventsv1.Event) any {
			switch {
			case record != nil && record.DeletionTimestamp != nil:
				return "releasing"
			case record != nil:
				return "recorded, pod " + fmt.Sprint(p != nil)
			case warning != nil:
				return "waits: " + warning.Note
			}
			return "waits"
		},
		Node: func(n *v1alpha1.NodeNetwork) any { return n.Spec.Blocks },
		Pool: func(_ *v1alpha1.IPPool, snap *kube.Snapshot) (any, bool) {
			if snap == nil {
				return "without a map", false
			}
			return len(snap.Blocks), len(snap.Blocks) > 0 && snap.Now.Before(now.Add(3*time.Second))
		},
		PortPool: func(p *v1alpha1.PortPool) any { return p.Spec.Ready },
		Explain: func(snap kube.Snapshot, _, _ string) (any, bool) {
			return len(snap.Events), len(snap.Pods)+len(snap.Attachments) > 0
		},
	}
}

func meta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: metav1.NewTime(now.Add(-time.Minute))}
}

func node(name string) *v1alpha1.NodeNetwork {
	return &v1alpha1.NodeNetwork{ObjectMeta: meta("", name)}
}

func podOn(name, node string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: meta("shop", name), Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: corev1.PodPending}}
	p.UID = types.UID("uid-" + name)
	return p
}

func recordOf(p *corev1.Pod) *v1alpha1.PodAttachment {
	r := pod.Record(pod.IdentityOf(p), []v1alpha1.Interface{{Name: "eth0", Network: v1alpha1.DefaultNetwork, Driver: "native"}, {Name: "net1", Network: "shop/lan"}})
	r.CreationTimestamp = metav1.NewTime(now.Add(-50 * time.Second))
	return r
}

func eventAbout(p *corev1.Pod, name, kind string, since time.Duration) *eventsv1.Event {
	e := &eventsv1.Event{ObjectMeta: meta(p.Namespace, name), EventTime: metav1.NewMicroTime(now.Add(-since)), Type: kind, Reason: "Because", Note: name}
	e.Regarding = corev1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID}
	return e
}

func network(name, config string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"config": config}}}
	u.SetGroupVersionKind(nad.Kind)
	u.SetNamespace("shop")
	u.SetName(name)
	return u
}

// listed returns a model with all resources listed, without objects.
func listed() *Model {
	m := NewModel(testViews())
	for _, r := range resources {
		m.Replace(r, nil)
	}
	m.Changes(now)
	return m
}

// changes returns the changes of some kinds as "kind id row".
func changes(m *Model, at time.Time, kinds ...string) []string {
	all, _ := m.Changes(at)
	out := []string{}
	for _, c := range all {
		if slices.Contains(kinds, c.Kind) {
			out = append(out, fmt.Sprintf("%s %s %s", c.Kind, c.ID, cmp.Or(string(c.Row), "gone")))
		}
	}
	slices.Sort(out)
	return out
}

func TestPodRows(t *testing.T) {
	web := podOn("web", "node-1")
	hosted := podOn("hosted", "node-1")
	hosted.Spec.HostNetwork = true
	other := node("node-2")
	other.Spec.DefaultNetwork = v1alpha1.DefaultNetworkOther
	asking := podOn("asking", "node-2")
	asking.Annotations = map[string]string{"k8s.v1.cni.cncf.io/networks": "lan"}
	foreign := network("lan", `{"cniVersion":"1.0.0","type":"bridge","ipam":{"type":"host-local"}}`)
	ours := network("lan", `{"cniVersion":"1.0.0","type":"bridge","ipam":{"type":"fairlead-ipam"}}`)
	deleted := recordOf(web)
	deleted.DeletionTimestamp = new(metav1.NewTime(now))
	successor := podOn("web", "node-1")
	successor.UID = "uid-later"
	m := listed()
	for _, step := range []struct {
		name string
		do   func()
		want []string
	}{
		{"pod without a node", func() { m.Put(kube.Pods, web) }, []string{}},
		{"node", func() { m.Put(kube.NodeNetworks, node("node-1")) }, []string{`pod shop/web/uid-web "waits"`}},
		{"warning", func() { m.Put(kube.ControllerEvents, eventAbout(web, "full", corev1.EventTypeWarning, time.Second)) }, []string{`pod shop/web/uid-web "waits: full"`}},
		{"earlier warning", func() { m.Put(kube.ControllerEvents, eventAbout(web, "older", corev1.EventTypeWarning, time.Minute)) }, []string{}},
		{"event of a node", func() { m.Put(kube.NodeEvents, eventAbout(web, "node", corev1.EventTypeWarning, 0)) }, []string{}},
		{"record", func() { m.Put(kube.PodAttachments, recordOf(web)) }, []string{`pod shop/web/uid-web "recorded, pod true"`}},
		{"the same again", func() { m.Put(kube.PodAttachments, recordOf(web)) }, []string{}},
		{"pod is gone", func() { m.Remove(kube.Pods, web) }, []string{`pod shop/web/uid-web "recorded, pod false"`}},
		{"record is released", func() { m.Put(kube.PodAttachments, deleted) }, []string{`pod shop/web/uid-web "releasing"`}},
		{"a successor", func() { m.Put(kube.Pods, successor) }, []string{`pod shop/web/uid-later "waits"`}},
		{"record is gone", func() { m.Remove(kube.PodAttachments, deleted) }, []string{`pod shop/web/uid-web gone`}},
		{"pod of the host's network", func() { m.Put(kube.Pods, hosted) }, []string{}},
		{"node of another plugin", func() { m.Put(kube.NodeNetworks, other); m.Put(kube.Pods, podOn("plain", "node-2")) }, []string{}},
		{"pod with a network", func() { m.Put(kube.Networks, ours); m.Put(kube.Pods, asking) }, []string{`pod shop/asking/uid-asking "waits"`}},
		{"network becomes foreign", func() { m.Put(kube.Networks, foreign) }, []string{`pod shop/asking/uid-asking gone`}},
		{"pods are not permitted any more", func() { m.Refused(kube.Pods, fmt.Errorf("%w: pods", kube.ErrForbidden)) }, []string{`pod shop/web/uid-later gone`}},
	} {
		step.do()
		if diff := gocmp.Diff(step.want, changes(m, now, kindPod)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
	}
}

// TestPodsWaitForRecords: without the records, every pod would be shown as waiting.
func TestPodsWaitForRecords(t *testing.T) {
	m := NewModel(testViews())
	m.Replace(kube.NodeNetworks, []client.Object{node("node-1")})
	m.Replace(kube.Pods, []client.Object{podOn("web", "node-1"), podOn("db", "node-1")})
	if got := changes(m, now, kindPod); len(got) > 0 {
		t.Errorf("before the records are listed: %v", got)
	}
	m.Replace(kube.PodAttachments, []client.Object{recordOf(podOn("web", "node-1"))})
	want := []string{`pod shop/db/uid-db "waits"`, `pod shop/web/uid-web "recorded, pod true"`}
	if diff := gocmp.Diff(want, changes(m, now, kindPod)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPoolRows(t *testing.T) {
	m := NewModel(testViews())
	m.Put(kube.IPPools, &v1alpha1.IPPool{ObjectMeta: meta("", "default")})
	if diff := gocmp.Diff([]string{`pool default "without a map"`}, changes(m, now, kindPool)); diff != "" {
		t.Errorf("blocks are not listed (-want +got):\n%s", diff)
	}
	m.Replace(kube.IPReservations, nil)
	m.Replace(kube.IPBlocks, []client.Object{&v1alpha1.IPBlock{ObjectMeta: meta("", "b1")}})
	got, later := m.Changes(now)
	if len(got) == 0 || !later {
		t.Errorf("a pool with an address that cools: %d changes, later %v", len(got), later)
	}
	if _, later = m.Changes(now.Add(2 * time.Second)); !later {
		t.Error("an address still cools, and no row changes later")
	}
	if _, later = m.Changes(now.Add(3 * time.Second)); later {
		t.Error("no address cools, and rows change later")
	}
	m.Refused(kube.IPBlocks, fmt.Errorf("%w: blocks", kube.ErrForbidden))
	if diff := gocmp.Diff([]string{`pool default "without a map"`}, changes(m, now, kindPool)); diff != "" {
		t.Errorf("blocks are not permitted (-want +got):\n%s", diff)
	}
}

func TestNetworkRows(t *testing.T) {
	m := listed()
	m.Put(kube.PodAttachments, recordOf(podOn("web", "node-1")))
	m.Put(kube.PodAttachments, recordOf(podOn("db", "node-1")))
	m.Put(kube.Networks, network("lan", `{"cniVersion":"1.0.0","type":"macvlan","master":"eth1","ipam":{"type":"fairlead-ipam"}}`))
	m.Put(kube.Networks, network("torn", `{"type":`))
	got, _ := m.Changes(now)
	rows := map[string]networkView{}
	for _, c := range got {
		var v networkView
		if c.Kind != kindNetwork {
			continue
		}
		if err := json.Unmarshal(c.Row, &v); err != nil {
			t.Fatal(err)
		}
		rows[c.ID] = v
	}
	if rows["shop/torn"].Problem == "" {
		t.Error("a network that cannot be parsed has no problem")
	}
	delete(rows, "shop/torn")
	want := map[string]networkView{
		"default":  {Name: "default", Type: "native", Interfaces: 2},
		"shop/lan": {Name: "shop/lan", Type: "macvlan", Interfaces: 2},
	}
	if diff := gocmp.Diff(want, rows); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestResourceRows(t *testing.T) {
	m := NewModel(testViews())
	m.Replace(kube.Pods, nil)
	m.Refused(kube.PodAttachments, fmt.Errorf("%w: cannot list", kube.ErrForbidden))
	m.Refused(kube.PortPools, fmt.Errorf("%w: no such resource", kube.ErrMissing))
	m.Refused(kube.IPPools, errors.New("connection refused"))
	got := changes(m, now, kindResource)
	want := []string{
		`resource events of fairlead-controller {"state":"Loading"}`,
		`resource events of fairlead.dev/node {"state":"Loading"}`,
		`resource ipblocks.fairlead.dev {"state":"Loading"}`,
		`resource ippools.fairlead.dev {"state":"Failing","message":"connection refused"}`,
		`resource ipreservations.fairlead.dev {"state":"Loading"}`,
		`resource network-attachment-definitions.k8s.cni.cncf.io {"state":"Loading"}`,
		`resource nodenetworks.fairlead.dev {"state":"Loading"}`,
		`resource podattachments.fairlead.dev {"state":"Forbidden","message":"not permitted: cannot list"}`,
		`resource pods {"state":"Listed"}`,
		`resource portpools.fairlead.dev {"state":"Missing","message":"not in this cluster: no such resource"}`,
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	m.Replace(kube.IPPools, nil)
	if diff := gocmp.Diff([]string{`resource ippools.fairlead.dev {"state":"Listed"}`}, changes(m, now, kindResource)); diff != "" {
		t.Errorf("the server answers again (-want +got):\n%s", diff)
	}
}

func TestEventRows(t *testing.T) {
	m := listed()
	p := podOn("web", "node-1")
	for i := range maxEvents + 5 {
		m.Put(kube.NodeEvents, eventAbout(p, fmt.Sprintf("e%03d", i), corev1.EventTypeWarning, time.Duration(i)*time.Second))
	}
	if got := changes(m, now, kindEvent); len(got) != maxEvents {
		t.Errorf("%d events, want the last %d", len(got), maxEvents)
	}
	m.Put(kube.ControllerEvents, eventAbout(p, "new", corev1.EventTypeNormal, 0))
	want := []string{
		`event shop/e099 gone`,
		`event shop/new {"at":"2026-03-02T09:30:00Z","warning":false,"reason":"Because","kind":"Pod","namespace":"shop","name":"web","note":"new"}`,
	}
	if diff := gocmp.Diff(want, changes(m, now, kindEvent)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A page that is opened later shows the same as a page that was open.
func TestAllIsTheSumOfChanges(t *testing.T) {
	m := NewModel(testViews())
	sum := map[string]string{}
	add := func() {
		got, _ := m.Changes(now)
		for _, c := range got {
			if c.Row == nil {
				delete(sum, c.Kind+" "+c.ID)
			} else {
				sum[c.Kind+" "+c.ID] = string(c.Row)
			}
		}
	}
	add()
	for _, r := range resources {
		m.Replace(r, nil)
	}
	add()
	for i := range 200 {
		p := podOn(fmt.Sprint("web-", i%17), fmt.Sprint("node-", i%3))
		switch i % 7 {
		case 0:
			m.Put(kube.NodeNetworks, node(p.Spec.NodeName))
		case 1, 2:
			m.Put(kube.Pods, p)
		case 3:
			m.Put(kube.PodAttachments, recordOf(p))
		case 4:
			m.Remove(kube.Pods, p)
		case 5:
			m.Remove(kube.PodAttachments, recordOf(p))
		case 6:
			m.Put(kube.ControllerEvents, eventAbout(p, fmt.Sprint("e", i), corev1.EventTypeWarning, time.Duration(i)))
		}
		if i%3 == 0 {
			add()
		}
	}
	add()
	all := map[string]string{}
	for _, c := range m.All() {
		all[c.Kind+" "+c.ID] = string(c.Row)
	}
	if diff := gocmp.Diff(all, sum); diff != "" {
		t.Errorf("(-all +sum):\n%s", diff)
	}
}

func TestStory(t *testing.T) {
	m := listed()
	p := podOn("web", "node-1")
	at := func(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-time.Minute + d)) }
	p.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: at(3 * time.Second)},
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: at(0)},
		{Type: corev1.PodInitialized, Status: corev1.ConditionTrue, LastTransitionTime: at(0)},
	}
	r := recordOf(p)
	r.CreationTimestamp = at(0)
	r.Spec.Summary.Addresses = "10.0.0.5"
	r.Spec.Summary.Interfaces = "eth0"
	r.Status.Sandbox = &v1alpha1.Sandbox{AttachedAt: new(metav1.NewMicroTime(at(400 * time.Millisecond).Time))}
	m.Put(kube.Pods, p)
	m.Put(kube.PodAttachments, r)
	m.Put(kube.ControllerEvents, eventAbout(p, "warned", corev1.EventTypeWarning, 58*time.Second))
	m.Put(kube.NodeEvents, eventAbout(p, "noted", corev1.EventTypeNormal, 0))
	m.Put(kube.NodeEvents, eventAbout(podOn("other", "node-1"), "other", corev1.EventTypeNormal, 0))
	start := now.Add(-time.Minute)
	want := &Story{Explained: 1, Moments: []Moment{
		{At: start, What: "Created"},
		{At: start, What: "Scheduled", Text: "on node node-1"},
		{At: start, What: "Recorded", Text: "10.0.0.5"},
		{At: start.Add(400 * time.Millisecond), What: "Plugged", Text: "eth0 on node node-1"},
		{At: start.Add(2 * time.Second), What: "Because", Text: "warned", Warning: true, Event: true},
		{At: start.Add(3 * time.Second), What: "Ready", Text: "its containers are ready"},
		{At: now, What: "Because", Text: "noted", Event: true},
	}}
	if diff := gocmp.Diff(want, m.Story("shop", "web", now)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := m.Story("shop", "none", now); got != nil {
		t.Errorf("the story of no pod: %+v", got)
	}
}
