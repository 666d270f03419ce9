package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/e2e/soak"
	"fairlead.dev/fairlead/test/kubeclient"
	"fairlead.dev/fairlead/test/netlab"
)

// restWithin bounds the time from the end of a phase until everything is true. The kubelet
// waits up to five minutes between two tries to start a container.
const restWithin = 6 * time.Minute

// atRest waits until everything is true that must be true while nothing happens, and reads
// the sizes of the programs.
func (s *soaking) atRest(ctx context.Context, number int) error {
	begun := time.Now()
	for _, part := range []struct {
		what string
		well look
	}{
		{"the controllers and the daemons", s.programsRest},
		{"the nodes to be Ready", s.nodesAre(corev1.ConditionTrue)},
		{"each pod to be ready, or gone", s.podsRest},
		{"each pod's own addresses", s.ownAddresses},
		{"each pod to answer both nodes", s.allAnswer},
		{"each pod to answer the others on its further networks", s.networksAnswer},
		{"the records of the pods that exist, and no others", s.recordsAgree},
		{"the blocks of the NodeNetworks", s.blocksAgree},
		{"a clean audit", s.auditedClean},
		{"nothing to collect", s.nothingToCollect},
		{"the addresses of the claims", s.claimsRest},
	} {
		if err := s.becomes(ctx, restWithin, part.well); err != nil {
			return fmt.Errorf("waiting for %s: %w", part.what, err)
		}
	}
	took := time.Since(begun)
	pods, err := s.running(ctx)
	if err != nil {
		return err
	}
	s.phases = append(s.phases, soak.Phase{Number: number, Rest: took, Running: len(pods)})
	if err := s.readSizes(ctx, number); err != nil {
		return err
	}
	s.Say("  phase %d: after %.1f s of rest all %d pods are reached at their addresses from both nodes, %s", number, took.Seconds(), len(pods), s.audited)
	return nil
}

// programsRest looks whether one controller leads, and all programs of ours are ready.
func (s *soaking) programsRest(ctx context.Context) (string, error) {
	if why, err := s.controlled(ctx); why != "" || err != nil {
		return why, err
	}
	for _, n := range s.nodes {
		if why := n.daemonReady(ctx); why != "" {
			return why, nil
		}
	}
	return "", nil
}

// running returns the pods that have not finished.
func (s *soaking) running(ctx context.Context) ([]corev1.Pod, error) {
	pods, err := s.pods(ctx)
	return slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded }), err
}

// recorded returns the pods that have not finished, and all PodAttachments.
func (s *soaking) recorded(ctx context.Context) ([]corev1.Pod, []v1alpha1.PodAttachment, error) {
	pods, err := s.running(ctx)
	if err != nil {
		return nil, nil, err
	}
	list := &v1alpha1.PodAttachmentList{}
	err = s.List(ctx, list, client.InNamespace(namespace))
	return pods, list.Items, err
}

func (s *soaking) podsRest(ctx context.Context) (string, error) {
	pods, err := s.running(ctx)
	var not []string
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil || !isReady(&pod) {
			not = append(not, fmt.Sprintf("%s on %s is %s", pod.Name, cmp.Or(pod.Spec.NodeName, "no node"), pod.Status.Phase))
		}
	}
	return summary(not), err
}

// ownAddresses looks whether each pod has addresses of all families, and no two have the same.
func (s *soaking) ownAddresses(ctx context.Context) (string, error) {
	pods, err := s.running(ctx)
	if err != nil {
		return "", err
	}
	_, err = s.targets(pods)
	return "", err
}

// allAnswer sends a request from each node to each pod at each of its addresses.
func (s *soaking) allAnswer(ctx context.Context) (string, error) {
	pods, err := s.running(ctx)
	if err != nil {
		return "", err
	}
	names, err := s.targets(pods)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	for _, target := range slices.Sorted(maps.Keys(names)) {
		for _, n := range s.nodes {
			if name, err := get(ctx, n.machine.Namespace, "http://"+target+"/name"); err != nil || name != names[target] {
				return fmt.Sprintf("%s asks pod %s at %s and gets %q", n.name, names[target], target, name), err
			}
		}
	}
	return "", nil
}

// networksAnswer makes each pod with further networks send a request to all pods on each of
// these.
func (s *soaking) networksAnswer(ctx context.Context) (string, error) {
	pods, records, err := s.recorded(ctx)
	if err != nil {
		return "", err
	}
	peers := soak.Peers(records, port)
	for _, pod := range pods {
		want := peers[pod.UID]
		if len(want) == 0 {
			continue
		}
		answers, err := s.reach(ctx, pod, slices.Sorted(maps.Keys(want)))
		if err != nil {
			return "", err
		}
		for target, name := range want {
			if answers[target] != name {
				return fmt.Sprintf("pod %s on %s asks pod %s at %s and gets %q", pod.Name, pod.Spec.NodeName, name, target, answers[target]), nil
			}
		}
	}
	return "", nil
}

// recordsAgree looks whether each pod has one PodAttachment and, on its node, one record and
// one network namespace, and nothing else has.
func (s *soaking) recordsAgree(ctx context.Context) (string, error) {
	pods, records, err := s.recorded(ctx)
	if err != nil {
		return "", err
	}
	uids := map[types.UID]string{}
	here := map[string]int{}
	for _, pod := range pods {
		uids[pod.UID] = pod.Name
		here[pod.Spec.NodeName]++
	}
	for _, pa := range records {
		if uids[pa.Spec.PodUID] == "" {
			return "PodAttachment " + pa.Name + " has no pod", nil
		}
		delete(uids, pa.Spec.PodUID)
	}
	if len(uids) > 0 {
		return fmt.Sprintf("pods without a PodAttachment: %v", slices.Sorted(maps.Values(uids))), nil
	}
	for _, n := range s.nodes {
		files, err := n.glob("/run/fairlead/attachments/*")
		if err != nil {
			return "", err
		}
		namespaces, err := n.namespaces()
		if err != nil {
			return "", err
		}
		if len(files) != here[n.name] || len(namespaces) != here[n.name] {
			return fmt.Sprintf("%s has %d pods, %d records and %d network namespaces", n.name, here[n.name], len(files), len(namespaces)), nil
		}
	}
	return "", nil
}

// blocksAgree looks whether the NodeNetworks have the blocks of their nodes, and no others.
func (s *soaking) blocksAgree(ctx context.Context) (string, error) {
	routed, err := s.blocks(ctx)
	if err != nil {
		return "", err
	}
	list := &v1alpha1.IPBlockList{}
	if err := s.List(ctx, list); err != nil {
		return "", err
	}
	for _, block := range list.Items {
		prefix, err := netip.ParsePrefix(block.Spec.CIDR)
		if err != nil {
			return "", fmt.Errorf("IPBlock %s: %w", block.Name, err)
		}
		if block.Spec.Node != "" && !routed[prefix.String()] {
			return fmt.Sprintf("block %s of %s is not routed", prefix, block.Spec.Node), nil
		}
		delete(routed, prefix.String())
	}
	if len(routed) > 0 {
		return fmt.Sprintf("routed, and no block: %v", slices.Sorted(maps.Keys(routed))), nil
	}
	return "", nil
}

// fairlead runs a command of the operator's program, and returns the end of its output.
func (s *soaking) fairlead(ctx context.Context, args ...string) (string, error) {
	args = append([]string{"--kubeconfig", s.Admin}, args...)
	out, err := s.Programs.Run(ctx, s.Net.Switch.Do, filepath.Join(s.programs(), "fairlead"), args...)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return lines[len(lines)-1], err
}

func (s *soaking) auditedClean(ctx context.Context) (_ string, err error) {
	s.audited, err = s.fairlead(ctx, "ipam", "audit")
	return "", err
}

func (s *soaking) nothingToCollect(ctx context.Context) (string, error) {
	_, err := s.fairlead(ctx, "gc", "--dry-run")
	return "", err
}

// claimsRest looks whether each claim has the addresses that it had at the rest before, and
// its pod has them.
func (s *soaking) claimsRest(ctx context.Context) (string, error) {
	list := &v1alpha1.IPClaimList{}
	if err := s.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return "", err
	}
	for _, claim := range list.Items {
		key, now := claim.Name+" "+string(claim.UID), fmt.Sprint(claim.Status.Addresses)
		if before, ok := s.kept[key]; ok && before != now {
			return fmt.Sprintf("claim %s has %s; it had %s", claim.Name, now, before), nil
		}
		s.kept[key] = now
	}
	return "", nil
}

// scrape adds the metrics of a node's daemon to those of the run.
func (s *soaking) scrape(ctx context.Context, n *node) {
	_, _ = s.scrapeAt(ctx, n.machine, daemonPort, fairleadNode+" of "+n.name) // a daemon that does not answer has its former figures
}

func (s *soaking) scrapeControllers(ctx context.Context) {
	for i := range s.controllers {
		_, _ = s.scrapeAt(ctx, s.Net.Switch, controllerPort+i, fmt.Sprintf("fairlead-controller %d", i)) // as above
	}
}

func (s *soaking) scrapeAt(ctx context.Context, m *netlab.Machine, port int, program string) (soak.Scrape, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	text, err := get(ctx, m.Namespace, fmt.Sprintf("http://127.0.0.1:%d/metrics", port))
	if err != nil {
		return nil, fmt.Errorf("metrics of %s: %w", program, err)
	}
	scrape, err := soak.ParseScrape(text)
	if err == nil {
		s.totals.Add(program, scrape)
	}
	return scrape, err
}

// readSizes reads the memory and the goroutines of our programs, prints them, and checks
// that they do not grow.
func (s *soaking) readSizes(ctx context.Context, phase int) error {
	var said []string
	read := func(m *netlab.Machine, port int, program string) error {
		scrape, err := s.scrapeAt(ctx, m, port, program)
		if err != nil {
			return err
		}
		r := soak.Reading{
			Phase: phase, Program: program,
			Memory: scrape.Value("process_resident_memory_bytes") / (1 << 20), Goroutines: scrape.Value("go_goroutines"),
		}
		s.readings = append(s.readings, r)
		said = append(said, fmt.Sprintf("%s %.0f MB, %.0f goroutines", program, r.Memory, r.Goroutines))
		return nil
	}
	var err error
	for _, n := range s.nodes {
		err = errors.Join(err, read(n.machine, daemonPort, fairleadNode+" of "+n.name))
	}
	for i := range s.controllers {
		err = errors.Join(err, read(s.Net.Switch, controllerPort+i, fmt.Sprintf("fairlead-controller %d", i)))
	}
	if err != nil {
		return err
	}
	s.Say("  sizes: %s", strings.Join(said, "; "))
	if problems := soak.Growing(s.readings); len(problems) > 0 {
		return errors.New(strings.Join(problems, "; "))
	}
	return nil
}

// countPods counts the pods that are created, as a watch shows them, until ctx ends.
func (s *soaking) countPods(ctx context.Context) error {
	c, err := kubeclient.New(s.REST)
	if err != nil {
		return err
	}
	seen := map[types.UID]bool{}
	for ctx.Err() == nil {
		// The API server may be away: each watch begins with the pods that exist.
		var w watch.Interface
		err := s.try(ctx, func(ctx context.Context) (err error) {
			w, err = c.Watch(context.WithoutCancel(ctx), &corev1.PodList{}, client.InNamespace(namespace))
			return err
		})
		if err != nil || w == nil {
			return err
		}
		stop := context.AfterFunc(ctx, w.Stop)
		for event := range w.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok && !seen[pod.UID] {
				seen[pod.UID] = true
				s.made.Add(1)
			}
		}
		stop()
		w.Stop()
	}
	return nil
}

// remove deletes all objects of the churn, and checks that nothing of the pods is left.
func (s *soaking) remove(ctx context.Context) error {
	of := metav1.ObjectMeta{Namespace: namespace}
	objects := []client.Object{newDeployment()}
	set, job := &appsv1.StatefulSet{ObjectMeta: of}, &batchv1.Job{ObjectMeta: of}
	set.Name, job.Name = churnSet, churnJob
	objects = append(objects, set, job)
	for slot := range slotCount {
		pod := &corev1.Pod{ObjectMeta: of}
		pod.Name = fmt.Sprintf("%s%d", slotPrefix, slot)
		objects = append(objects, pod)
	}
	for _, o := range objects {
		if err := s.delete(ctx, o); err != nil {
			return err
		}
	}
	if err := s.nothingLeft(ctx); err != nil {
		return err
	}
	err := s.becomes(ctx, restWithin, func(ctx context.Context) (string, error) {
		left, err := s.takenAddresses(ctx)
		return summary(left), err
	})
	if err != nil {
		return fmt.Errorf("waiting for the addresses to be free: %w", err)
	}
	if err := s.linksBack(); err != nil {
		return err
	}
	if err := s.deleteNetworks(ctx); err != nil {
		return err
	}
	return s.disconnect()
}

// linksBack checks that each node has all links that it had before.
func (s *soaking) linksBack() error {
	for _, n := range s.nodes {
		now, err := n.machine.State()
		if err != nil {
			return err
		}
		if missing := n.baseline.Since(now).Links; len(missing) > 0 {
			return fmt.Errorf("%s lost the links %v", n.name, missing)
		}
	}
	return nil
}

// varying are the parts of an error's text that differ from pod to pod.
var varying = regexp.MustCompile(`"[^"]*"|default/\S+|/run/\S+|\b[0-9a-f]{8}-[0-9a-f-]{27}\b|\b[0-9a-f]{8,}\b|\d+(\.\d+)*(m?s)?|cni-\S+`)

// wrapping is the beginning of an error's text, from the kubelet, gRPC and containerd.
var wrapping = regexp.MustCompile(`^(Failed to create pod sandbox: |rpc error: code = \w+ desc = |failed to setup network for sandbox "[^"]*": |plugin type="[^"]*" failed \(add\): )+`)

// causes counts the kubelets' events about sandboxes by their text, without the parts that
// differ from pod to pod.
func causes(events []string) map[string]int {
	const longest = 100
	out := map[string]int{}
	for _, event := range events {
		_, text, _ := strings.Cut(event, ": ")
		text = varying.ReplaceAllString(wrapping.ReplaceAllString(text, ""), "*")
		out[text[:min(longest, len(text))]]++
	}
	return out
}
