package check

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/check/probe"
	"fairlead.dev/fairlead/internal/cli/kube"
)

const (
	// patience is the time within which a probe has to pass.
	patience = 5 * time.Second
	// policyPatience is the time within which a policy has to be in effect.
	policyPatience = 20 * time.Second
	// podWait is the time within which the pods have to run.
	podWait = 2 * time.Minute
	// execWait bounds the probes of one pod.
	execWait = 5 * time.Minute
	// emptyWait bounds the wait for pods before their namespaces are deleted.
	emptyWait = 15 * time.Second
	// cleanWait bounds the removal of everything.
	cleanWait = 2 * time.Minute
	// execs is the number of pods whose probes run at the same time.
	execs = 8
)

// errRuns means that another check may run in the cluster. The pods of two checks need the
// same ports of the nodes.
var errRuns = errors.New("another check of this cluster may be running")

// cluster is the part of a cluster that is not Kubernetes' own client; kube.Session is one.
type cluster interface {
	NodeNetworks(ctx context.Context) ([]v1alpha1.NodeNetwork, error)
	PodAttachments(ctx context.Context, namespace string) ([]v1alpha1.PodAttachment, error)
	Exec(ctx context.Context, pod *corev1.Pod, stdin io.Reader, command ...string) ([]byte, error)
}

// checking is one run of the command.
type checking struct {
	api     kubernetes.Interface
	cluster cluster
	settings
	system string
	// say reports the progress to the user.
	say func(format string, args ...any)

	rows []Row
}

// run makes the pods and their probes, and removes everything, also when ctx ends.
func (r *checking) run(ctx context.Context) (view, error) {
	places, served, err := r.places(ctx)
	if err != nil {
		return view{}, err
	}
	if err := r.findImage(ctx); err != nil {
		return view{}, err
	}
	if err := r.removeLeft(ctx); err != nil {
		return view{}, err
	}
	id := strings.ToLower(rand.Text()[:8])
	err = r.test(ctx, id, places)
	r.say("removing the namespaces of the check")
	cleaning, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanWait)
	defer cancel()
	if left := r.remove(cleaning, namespaceOf(partPods, id).Name, namespaceOf(partHost, id).Name); left != nil {
		if err != nil {
			return view{}, errors.Join(err, left)
		}
		r.rows = append(r.rows, Row{Test: testCleanUp, Result: Failed, Detail: left.Error()})
	}
	if err != nil {
		return view{}, err
	}
	return buildView(r.rows, places, served), nil
}

// places chooses the nodes.
func (r *checking) places(ctx context.Context) ([]place, int, error) {
	networks, err := r.cluster.NodeNetworks(ctx)
	if err != nil {
		return nil, 0, err
	}
	nodes, err := r.api.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, 0, fmt.Errorf("list nodes: %w", err)
	}
	chosen, rows, served := sample(nodes.Items, networks, r.limit)
	r.rows = rows
	if len(chosen) == 0 {
		return nil, 0, fmt.Errorf("no node is Ready and has a NodeNetwork, of %d: see fairlead status", len(nodes.Items))
	}
	r.say("testing %d of %d nodes", len(chosen), served)
	return chosen, served, nil
}

// findImage finds the image of the node's daemon, which each node has.
func (r *checking) findImage(ctx context.Context) error {
	if r.image != "" {
		return nil
	}
	list, err := r.api.AppsV1().DaemonSets(r.system).List(ctx, metav1.ListOptions{LabelSelector: kube.LabelProgram + "=" + kube.DaemonName})
	if err != nil {
		return fmt.Errorf("find the image of the daemon: %w; or name an image with --image", err)
	}
	for _, d := range list.Items {
		for _, c := range d.Spec.Template.Spec.Containers {
			r.image = c.Image
			return nil
		}
	}
	return fmt.Errorf("namespace %s has no DaemonSet %s, whose image the pods of the check need: name the namespace with --system-namespace or an image with --image", r.system, kube.DaemonName)
}

// removeLeft removes the namespaces of an earlier check that was killed. The label alone is
// not enough: a mistaken label on another namespace must not delete it. Errors: errRuns if
// a namespace is so young that its check may still run.
func (r *checking) removeLeft(ctx context.Context) error {
	list, err := r.api.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: LabelCheck})
	if err != nil {
		return fmt.Errorf("list namespaces: %w", err)
	}
	list.Items = slices.DeleteFunc(list.Items, func(n corev1.Namespace) bool { return !strings.HasPrefix(n.Name, namePrefix) })
	if len(list.Items) == 0 {
		return nil
	}
	// The API server's clock made their times, and this machine may have another.
	now, err := r.api.CoreV1().Namespaces().Create(ctx, namespaceOf(partPods, "now"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return fmt.Errorf("read the time of the API server: %w", err)
	}
	var left []string
	for _, n := range list.Items {
		left = append(left, n.Name)
		if age := now.CreationTimestamp.Sub(n.CreationTimestamp.Time); age < maxAge*time.Second {
			return fmt.Errorf("%w: namespace %s was made %v ago. Wait for its end; if it was killed: kubectl delete namespace -l %s", errRuns, n.Name, age, LabelCheck)
		}
	}
	r.say("removing %s, left by an earlier check", strings.Join(left, ", "))
	ctx, cancel := context.WithTimeout(ctx, cleanWait)
	defer cancel()
	return r.remove(ctx, left...)
}

// test makes everything, and the rows of all tests.
func (r *checking) test(ctx context.Context, id string, places []place) error {
	all, err := r.start(ctx, id, places)
	if err != nil {
		return err
	}
	hasDNS, err := r.hasDNS(ctx)
	if err != nil {
		return err
	}
	tasks, missing := plan(all, r.settings, hasDNS)
	r.say("making %d probes", len(tasks))
	rows, err := r.execute(ctx, tasks, patience)
	if err != nil {
		return err
	}
	r.rows = append(append(r.rows, missing...), rows...)
	if !r.policy {
		return nil
	}
	denied := planPolicy(tasks, rows)
	if len(denied) == 0 {
		r.rows = append(r.rows, Row{Test: testPolicy, Result: NotTried, Detail: "no connection between two nodes came about before"})
		return nil
	}
	if _, err := r.api.NetworkingV1().NetworkPolicies(denied[0].pod.Namespace).Create(ctx, denyAll(denied[0].pod.Namespace), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create a NetworkPolicy: %w", err)
	}
	r.say("a NetworkPolicy denies all: making %d probes", len(denied))
	rows, err = r.execute(ctx, denied, policyPatience)
	r.rows = append(r.rows, rows...)
	return err
}

// hasDNS reports whether the cluster has a DNS where most have it.
func (r *checking) hasDNS(ctx context.Context) (bool, error) {
	list, err := r.api.CoreV1().Services(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: "k8s-app=kube-dns"})
	if apierrors.IsForbidden(err) {
		return true, nil // most clusters have one
	}
	if err != nil {
		return false, fmt.Errorf("find the DNS of the cluster: %w", err)
	}
	return len(list.Items) > 0, nil
}

// execute makes the probes of each pod by one execution, and returns their rows in the
// order of the tasks. A pod in which nothing can be executed has a row for that; if there is
// no other, this is the error.
func (r *checking) execute(ctx context.Context, tasks []task, patience time.Duration) ([]Row, error) {
	of := map[*corev1.Pod][]int{}
	for i, t := range tasks {
		of[t.pod] = append(of[t.pod], i)
	}
	var (
		rows   = make([]Row, len(tasks))
		lock   sync.Mutex
		failed []error
		broken []Row
		all    sync.WaitGroup
		turn   = make(chan struct{}, execs)
	)
	for pod, mine := range of {
		all.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			p := probe.Plan{Patience: int(patience.Milliseconds())}
			for _, i := range mine {
				p.Probes = append(p.Probes, tasks[i].probe)
			}
			outcomes, err := r.exec(ctx, pod, p)
			lock.Lock()
			defer lock.Unlock()
			if err != nil {
				failed = append(failed, err)
				broken = append(broken, Row{Test: testExec, From: pod.Spec.NodeName, Result: Failed, Detail: err.Error()})
			}
			for k, i := range mine {
				if err != nil {
					rows[i] = tasks[i].row
					rows[i].Result, rows[i].Detail = NotTried, "nothing can be executed in the pod"
					continue
				}
				rows[i] = outcomeOf(tasks[i], outcomes[k])
			}
		})
	}
	all.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("the check was ended: %w", err)
	}
	if len(failed) > 0 && len(failed) == len(of) {
		return nil, fmt.Errorf("%w; the check needs a kubelet on each node that the API server reaches, and the right to execute in pods", failed[0])
	}
	return append(rows, broken...), nil
}

func (r *checking) exec(ctx context.Context, pod *corev1.Pod, plan probe.Plan) ([]probe.Outcome, error) {
	raw, err := json.Marshal(plan)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, execWait)
	defer cancel()
	answer, err := r.cluster.Exec(ctx, pod, bytes.NewReader(raw), "fairlead", "probe", "run")
	if err != nil {
		return nil, fmt.Errorf("execute in pod %s/%s on node %s: %w", pod.Namespace, pod.Name, pod.Spec.NodeName, err)
	}
	var outcomes []probe.Outcome
	if err := json.Unmarshal(answer, &outcomes); err != nil || len(outcomes) != len(plan.Probes) {
		return nil, fmt.Errorf("pod %s/%s on node %s: the answer has %d outcomes; must be %d: the image %s must be of this version (%w)",
			pod.Namespace, pod.Name, pod.Spec.NodeName, len(outcomes), len(plan.Probes), pod.Spec.Containers[0].Image, err)
	}
	return outcomes, nil
}
