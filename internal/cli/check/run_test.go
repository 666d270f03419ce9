package check

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/check/probe"
	"fairlead.dev/fairlead/internal/cli/kube"
)

// serverTime is the time of the API server, whose clock differs from that of this machine.
var serverTime = time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)

// world is a cluster without a network: the pods run at once, and exec answers the probes.
type world struct {
	*fake.Clientset
	exec func(p *corev1.Pod, plan probe.Plan) ([]probe.Outcome, error)

	lock    sync.Mutex
	said    []string
	records []v1alpha1.PodAttachment // of all pods
}

func newWorld(t *testing.T) *world {
	t.Helper()
	one, two := nodeNamed("node-1", corev1.ConditionTrue, "192.0.2.1"), nodeNamed("node-2", corev1.ConditionTrue, "192.0.2.2")
	daemon := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "fairlead-node", Labels: map[string]string{kube.LabelProgram: kube.DaemonName}}}
	daemon.Spec.Template.Spec.Containers = []corev1.Container{{Image: "registry.invalid/fairlead:1"}}
	left := namespaceOf(partPods, "left")
	left.CreationTimestamp = metav1.NewTime(serverTime.Add(-maxAge * time.Second))
	w := &world{Clientset: fake.NewClientset(&one, &two, daemon, left)}
	w.exec = func(_ *corev1.Pod, plan probe.Plan) ([]probe.Outcome, error) {
		out := make([]probe.Outcome, len(plan.Probes))
		for i := range out {
			out[i].Passed = true
		}
		return out, nil
	}
	w.PrependReactor("create", "namespaces", func(a clienttesting.Action) (bool, runtime.Object, error) {
		create := a.(clienttesting.CreateActionImpl)
		ns := create.GetObject().(*corev1.Namespace)
		ns.CreationTimestamp = metav1.NewTime(serverTime)
		return len(create.CreateOptions.DryRun) > 0, ns, nil
	})
	created := 0
	w.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		p := a.(clienttesting.CreateAction).GetObject().(*corev1.Pod)
		created++
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		ip := fmt.Sprintf("10.0.0.%d", created)
		p.Status.PodIPs = []corev1.PodIP{{IP: ip}}
		record := v1alpha1.PodAttachment{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace}}
		record.Spec.PodName, record.Spec.Interfaces = p.Name, []v1alpha1.Interface{{
			Network: "default", Default: true, Addresses: []string{ip + "/32"}, Binding: v1alpha1.Binding{Routed: &v1alpha1.RoutedBinding{}},
		}}
		w.records = append(w.records, record)
		return false, nil, nil
	})
	return w
}

func (w *world) NodeNetworks(context.Context) ([]v1alpha1.NodeNetwork, error) {
	return []v1alpha1.NodeNetwork{networkOf("node-1"), networkOf("node-2")}, nil
}

func (w *world) PodAttachments(_ context.Context, namespace string) ([]v1alpha1.PodAttachment, error) {
	return slices.DeleteFunc(slices.Clone(w.records), func(a v1alpha1.PodAttachment) bool { return a.Namespace != namespace }), nil
}

func (w *world) Exec(_ context.Context, p *corev1.Pod, stdin io.Reader, command ...string) ([]byte, error) {
	if got := strings.Join(command, " "); got != "fairlead probe run" {
		return nil, fmt.Errorf("executed %q", got)
	}
	var plan probe.Plan
	if err := json.NewDecoder(stdin).Decode(&plan); err != nil {
		return nil, err
	}
	outcomes, err := w.exec(p, plan)
	if err != nil {
		return nil, err
	}
	return json.Marshal(outcomes)
}

func (w *world) checking(s settings) *checking {
	s.limit = maxNodes
	return &checking{api: w, cluster: w, settings: s, system: "system", say: func(format string, args ...any) {
		w.lock.Lock()
		defer w.lock.Unlock()
		w.said = append(w.said, fmt.Sprintf(format, args...))
	}}
}

// empty checks that nothing of a check is left.
func (w *world) empty(t *testing.T) {
	t.Helper()
	namespaces, err := w.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(namespaces.Items) > 0 {
		t.Errorf("%d namespaces are left, error %v", len(namespaces.Items), err)
	}
}

func TestRun(t *testing.T) {
	w := newWorld(t)
	v, err := w.checking(settings{policy: true}).run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[Test]int{}
	for _, r := range v.Rows {
		if r.Result == Passed {
			got[r.Test]++
		}
	}
	want := map[Test]int{testTCP: 2, testUDP: 2, testSize: 2, testSame: 2, testFromNode: 2, testHostPort: 4, testPolicy: 2, testSource: 4}
	if diff := cmp.Diff(want, got); diff != "" || !v.OK {
		t.Errorf("passed (-want +got):\n%s\nall: %+v", diff, v)
	}
	if said := strings.Join(w.said, "\n"); !strings.Contains(said, "removing fairlead-check-left, left by an earlier check") || !strings.Contains(said, "the pods of image registry.invalid/fairlead:1") {
		t.Errorf("progress:\n%s", said)
	}
	w.empty(t)
}

// A check leaves the namespaces of another check alone that may be running: it would end it,
// and both need the same ports of the nodes.
func TestAnotherCheckRuns(t *testing.T) {
	w := newWorld(t)
	other := namespaceOf(partHost, "other")
	other.CreationTimestamp = metav1.NewTime(serverTime.Add(-time.Minute))
	if err := w.Tracker().Add(other); err != nil {
		t.Fatal(err)
	}
	_, err := w.checking(settings{}).run(t.Context())
	if !errors.Is(err, errRuns) || !strings.Contains(err.Error(), other.Name+" was made 1m0s ago") {
		t.Errorf("error %v, want errRuns with the namespace", err)
	}
	left, err := w.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(left.Items) != 2 {
		t.Errorf("%d namespaces, error %v; want the two that were there", len(left.Items), err)
	}
}

// A pod of the check has as few rights as any: Pod Security admits it in the restricted
// namespace. The others differ from it in a port of the host, the network of the host and the
// capability NET_RAW alone.
func TestPodsAreRestricted(t *testing.T) {
	for _, r := range []role{roleServer, roleHostPort, roleNode, roleSender} {
		p := podOn(r, 0, "node-1", "ns", settings{networks: []string{"a/b"}, pools: []string{"lan", "wan"}})
		c := p.Spec.Containers[0]
		wantUser, capabilities := int64(user), []corev1.Capability(nil)
		if r == roleSender {
			wantUser, capabilities = 0, []corev1.Capability{"NET_RAW"}
		}
		if diff := cmp.Diff(&corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: capabilities}, c.SecurityContext.Capabilities); diff != "" {
			t.Errorf("%s: capabilities (-want +got):\n%s", r, diff)
		}
		switch {
		case r != roleSender && !*p.Spec.SecurityContext.RunAsNonRoot, *p.Spec.SecurityContext.RunAsUser != wantUser,
			p.Spec.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault,
			c.SecurityContext.Privileged != nil, *c.SecurityContext.AllowPrivilegeEscalation, !*c.SecurityContext.ReadOnlyRootFilesystem,
			*p.Spec.AutomountServiceAccountToken, len(p.Spec.Volumes) > 0, p.Spec.HostPID, p.Spec.HostIPC, p.Spec.ActiveDeadlineSeconds == nil:
			t.Errorf("%s has more rights than it needs: %+v", r, p.Spec)
		}
		if serves := slices.Contains(c.Command, "serve"); serves != (r == roleServer || r == roleHostPort) {
			t.Errorf("%s: the command is %v", r, c.Command)
		}
		if p.Spec.HostNetwork != (r == roleNode) || (len(c.Ports) > 0) != (r == roleHostPort) {
			t.Errorf("%s: host network %t, ports %v", r, p.Spec.HostNetwork, c.Ports)
		}
		if want := map[bool]int{true: 2, false: 0}[r == roleServer || r == roleSender]; len(p.Annotations) != want {
			t.Errorf("%s: annotations %v; want %d", r, p.Annotations, want)
		}
	}
	if got := namespaceOf(partPods, "x").Labels["pod-security.kubernetes.io/enforce"]; got != "restricted" {
		t.Errorf("the namespace enforces %q; want restricted", got)
	}
}

// A namespace with the label of a check and another name stays.
func TestLabelledNamespaceStays(t *testing.T) {
	w := newWorld(t)
	other := namespaceOf(partPods, "x")
	other.Name = "shop"
	if err := w.Tracker().Add(other); err != nil {
		t.Fatal(err)
	}
	if _, err := w.checking(settings{}).run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := w.CoreV1().Namespaces().Get(t.Context(), "shop", metav1.GetOptions{}); err != nil {
		t.Errorf("the namespace of another: %v", err)
	}
}

func TestRunFails(t *testing.T) {
	refused := errors.New("connection refused")
	for name, tc := range map[string]struct {
		change func(*world, context.CancelFunc)
		err    string // empty for a check with a result
		failed map[Test]int
		begins string // of the first finding
	}{
		"nothing can be executed": {
			change: func(w *world, _ context.CancelFunc) {
				w.exec = func(*corev1.Pod, probe.Plan) ([]probe.Outcome, error) { return nil, refused }
			},
			err: "connection refused; the check needs a kubelet on each node",
		},
		"nothing can be executed on a node": {
			change: func(w *world, _ context.CancelFunc) {
				all := w.exec
				w.exec = func(p *corev1.Pod, plan probe.Plan) ([]probe.Outcome, error) {
					if p.Spec.NodeName == "node-2" {
						return nil, refused
					}
					return all(p, plan)
				}
			},
			failed: map[Test]int{testExec: 3}, begins: "on node node-2 nothing can be executed in a pod",
		},
		"an image of another version": {
			change: func(w *world, _ context.CancelFunc) {
				w.exec = func(*corev1.Pod, probe.Plan) ([]probe.Outcome, error) { return nil, nil }
			},
			err: "the image registry.invalid/fairlead:1 must be of this version",
		},
		"ended by the user": {
			change: func(w *world, cancel context.CancelFunc) {
				w.exec = func(*corev1.Pod, probe.Plan) ([]probe.Outcome, error) {
					cancel()
					return nil, refused
				}
			},
			err: "the check was ended: context canceled",
		},
		"a pod that failed": {
			change: func(w *world, _ context.CancelFunc) {
				w.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
					p := a.(clienttesting.CreateAction).GetObject().(*corev1.Pod)
					if p.Name == "server-1" {
						p.Status.Phase, p.Status.Message = corev1.PodFailed, "no memory"
						return true, p, w.Tracker().Create(corev1.SchemeGroupVersion.WithResource("pods"), p, p.Namespace)
					}
					return false, nil, nil
				})
			},
			failed: map[Test]int{testPod: 1}, begins: "on node node-2 no pod starts: pod server-1 is Failed no memory; it has no PodAttachment",
		},
		"pods of the host that are refused": {
			change: func(w *world, _ context.CancelFunc) {
				w.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
					p := a.(clienttesting.CreateAction).GetObject().(*corev1.Pod)
					if p.Labels[labelPod] == "server-0" || p.Labels[labelPod] == "server-1" {
						return false, nil, nil
					}
					return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), p.Name, errors.New("violates PodSecurity"))
				})
				w.exec = func(_ *corev1.Pod, plan probe.Plan) ([]probe.Outcome, error) {
					return make([]probe.Outcome, len(plan.Probes)), nil
				}
			},
			failed: map[Test]int{testTCP: 2, testUDP: 2, testSize: 2}, begins: "pods do not reach each other on network default",
		},
		"no daemon": {
			change: func(w *world, _ context.CancelFunc) {
				if err := w.AppsV1().DaemonSets("system").Delete(t.Context(), "fairlead-node", metav1.DeleteOptions{}); err != nil {
					t.Error(err)
				}
				if err := w.CoreV1().Namespaces().Delete(t.Context(), "fairlead-check-left", metav1.DeleteOptions{}); err != nil {
					t.Error(err)
				}
			},
			err: "name the namespace with --system-namespace or an image with --image",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			tc.change(w, cancel)
			v, err := w.checking(settings{}).run(ctx)
			w.empty(t)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v; want %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := map[Test]int{}
			for _, r := range v.Rows {
				if r.Result == Failed {
					got[r.Test]++
				}
			}
			if diff := cmp.Diff(tc.failed, got); diff != "" || v.OK || len(v.Findings) == 0 || !strings.HasPrefix(v.Findings[0].Problem, tc.begins) {
				t.Errorf("failed (-want +got):\n%s\nfindings %+v; want at first %q", diff, v.Findings, tc.begins)
			}
		})
	}
}

// A policy engine refuses pods by a webhook, and a ValidatingAdmissionPolicy by itself: the
// tests of these pods are not tried, and the others are made.
func TestRefusedPods(t *testing.T) {
	w := newWorld(t)
	w.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		p := a.(clienttesting.CreateAction).GetObject().(*corev1.Pod)
		switch {
		case strings.HasPrefix(p.Name, "server"):
			return false, nil, nil
		case p.Spec.NodeName == "node-1":
			return true, nil, apierrors.NewBadRequest(`admission webhook "policy" denied the request`)
		}
		return true, nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), p.Name, nil)
	})
	v, err := w.checking(settings{}).run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	passed := map[Test]int{}
	var sources []Row
	for _, r := range v.Rows {
		if r.Result == Passed {
			passed[r.Test]++
		}
		if r.Test == testSource {
			sources = append(sources, r)
		}
	}
	if diff := cmp.Diff(map[Test]int{testTCP: 2, testUDP: 2, testSize: 2}, passed); diff != "" || !v.OK {
		t.Errorf("passed (-want +got):\n%s", diff)
	}
	want := []Row{
		{Test: testSource, From: "node-1", Result: NotTried, Detail: `admission webhook "policy" denied the request`},
		{Test: testSource, From: "node-2", Result: NotTried, Detail: `Pod "sender-1" is invalid`},
	}
	if diff := cmp.Diff(want, sources); diff != "" {
		t.Errorf("rows of source addresses (-want +got):\n%s", diff)
	}
	w.empty(t)
}

// A pod that never runs is waited for once, and the tests without it are made.
func TestRunWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			p := a.(clienttesting.CreateAction).GetObject().(*corev1.Pod)
			if p.Name != "server-1" {
				return false, nil, nil
			}
			p.Status.Phase = corev1.PodPending
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such image"}}}}
			return true, p, w.Tracker().Create(corev1.SchemeGroupVersion.WithResource("pods"), p, p.Namespace)
		})
		begin := time.Now()
		v, err := w.checking(settings{}).run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took != podWait {
			t.Errorf("the check took %v; want %v", took, podWait)
		}
		var failed []Row
		passed := map[Test]int{}
		for _, r := range v.Rows {
			switch r.Result {
			case Failed:
				failed = append(failed, r)
			case Passed:
				passed[r.Test]++
			default:
			}
		}
		want := []Row{{Test: testPod, From: "node-2", Result: Failed, Detail: "pod server-1 is Pending; ErrImagePull no such image; it has no PodAttachment"}}
		if diff := cmp.Diff(want, failed); diff != "" {
			t.Errorf("failed (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[Test]int{testSame: 1, testFromNode: 1, testHostPort: 2, testSource: 2}, passed); diff != "" {
			t.Errorf("passed (-want +got):\n%s", diff)
		}
		w.empty(t)
	})
}

// The output of the command is one JSON object.
func TestViewIsJSON(t *testing.T) {
	raw, err := json.Marshal(buildView(nil, nil, 0))
	if err != nil || !bytes.Equal(raw, []byte(`{"ok":true,"nodes":[],"served":0,"rows":[],"findings":[]}`)) {
		t.Errorf("empty view: %s, %v", raw, err)
	}
}
