package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

const (
	rivalFigure = "alloc_vs_whereabouts"
	rivalModule = "github.com/k8snetworkplumbingwg/whereabouts"
	// atATime is how many pods wait for an address at once.
	atATime = 16
)

// whereaboutsKinds are the kinds that whereabouts writes.
var whereaboutsKinds = []string{"ippools", "overlappingrangeipreservations"}

// buildWhereabouts builds whereabouts from the module in a directory, and copies the
// definitions of its kinds.
func buildWhereabouts(ctx context.Context, p plan, source string) error {
	if !p.makes(whereaboutsMeasurement()) {
		return nil
	}
	if err := goBuild(ctx, source, p.tool("whereabouts"), rivalModule+"/cmd"); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", rivalModule)
	cmd.Dir = source
	dir, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("find the sources of %s: %w", rivalModule, err)
	}
	for _, kind := range whereaboutsKinds {
		name := "whereabouts.cni.cncf.io_" + kind + ".yaml"
		raw, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "doc", "crds", name))
		if err != nil {
			return fmt.Errorf("definition of whereabouts' %s: %w", kind, err)
		}
		if err := os.WriteFile(p.tool(kind+".yaml"), raw, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// whereaboutsTool is whereabouts, with its objects in the bench's cluster.
type whereaboutsTool struct {
	w      *testbed
	config []byte

	mu sync.Mutex
	// given are the addresses that were handed out. retried counts the calls that were
	// refused and repeated.
	given   map[netip.Addr]bool
	retried int
}

// allocVsWhereabouts measures how many pods per second get an address.
func allocVsWhereabouts(ctx context.Context, w *testbed) (_ map[string]figure, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if _, err := w.allocating(ctx, "rival-model"); err != nil {
		return nil, err
	}
	b, err := w.kube.watchNodes(ctx, false, watchedNodes()...)
	if err != nil {
		return nil, err
	}
	r := &whereaboutsTool{w: w, given: map[netip.Addr]bool{}}
	defer func() { err = errors.Join(err, r.remove(ctx)) }()
	if err := r.install(ctx); err != nil {
		return nil, err
	}
	var ours, theirs samples
	rounds, pods := w.samples(3, 1), w.samples(40, 10)
	for round := range rounds {
		err := inTurns(round,
			func() error {
				perSecond, err := perSecond(pods, func(i int) error {
					pod, err := w.kube.pod(ctx, fmt.Sprintf("rival-%d-%d", round, i), watchedNodes()[i%len(watchedNodes())])
					if err != nil {
						return err
					}
					_, err = b.record(ctx, pod.UID)
					return err
				})
				ours = append(ours, perSecond)
				return err
			},
			func() error {
				perSecond, err := perSecond(pods, func(i int) error { return r.add(ctx, round*pods+i) })
				theirs = append(theirs, perSecond)
				return err
			})
		if err != nil {
			return nil, fmt.Errorf("round %d: %w", round, err)
		}
		w.Say("  round %d of %d: %d pods, %d at once: ours %.0f/s, whereabouts %.1f/s", round+1, rounds, pods, atATime, ours[round], theirs[round])
	}
	w.Say("  %d ADDs of whereabouts failed and were made again", r.retried)
	return map[string]figure{rivalFigure: {ours.median(), theirs.median()}}, nil
}

// perSecond calls do for n pods, at most atATime at once, and returns the rate.
func perSecond(n int, do func(i int) error) (float64, error) {
	start := time.Now()
	err := atOnce(atATime, n, do)
	return float64(n) / time.Since(start).Seconds(), err
}

// install creates whereabouts' kinds and its configuration, with all its defaults.
func (r *whereaboutsTool) install(ctx context.Context) error {
	for _, kind := range whereaboutsKinds {
		crd, err := r.definition(kind)
		if err != nil {
			return err
		}
		if err := r.w.kube.Create(ctx, crd); err != nil {
			return fmt.Errorf("install %s: %w", crd.Name, err)
		}
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(schema.GroupVersionKind{Group: crd.Spec.Group, Version: crd.Spec.Versions[0].Name, Kind: crd.Spec.Names.ListKind})
		if err := await(ctx, crd.Name, func(ctx context.Context) error { return r.w.kube.List(ctx, list) }); err != nil {
			return err
		}
	}
	// Its objects are in the namespace of its kubeconfig.
	cfg, err := clientcmd.LoadFromFile(r.w.kube.path)
	if err != nil {
		return fmt.Errorf("kubeconfig of whereabouts: %w", err)
	}
	cfg.Contexts[cfg.CurrentContext].Namespace = namespace
	kubeconfig, flatFile := filepath.Join(r.w.Tmpfs(), "whereabouts.kubeconfig"), filepath.Join(r.w.Tmpfs(), "whereabouts.conf")
	if err := clientcmd.WriteToFile(*cfg, kubeconfig); err != nil {
		return fmt.Errorf("kubeconfig of whereabouts: %w", err)
	}
	if err := os.WriteFile(flatFile, []byte("{}"), 0o600); err != nil { // it needs a file
		return err
	}
	r.config, err = json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": "rival", "type": "macvlan",
		"ipam": map[string]any{
			"type": "whereabouts", "range": "10.251.0.0/16",
			"configuration_path": flatFile, "kubernetes": map[string]any{"kubeconfig": kubeconfig},
		},
	})
	return err
}

// definition returns the definition of one of whereabouts' kinds.
func (r *whereaboutsTool) definition(kind string) (*apiextensionsv1.CustomResourceDefinition, error) {
	raw, err := os.ReadFile(r.w.tool(kind + ".yaml"))
	if err != nil {
		return nil, err
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.Unmarshal(raw, crd); err != nil {
		return nil, fmt.Errorf("definition of whereabouts' %s: %w", kind, err)
	}
	return crd, nil
}

// remove removes whereabouts' kinds, and with them its objects.
func (r *whereaboutsTool) remove(ctx context.Context) error {
	errs := []error{client.IgnoreNotFound(r.w.kube.Delete(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "whereabouts"},
	}))}
	for _, kind := range whereaboutsKinds {
		crd, err := r.definition(kind)
		if err == nil {
			err = client.IgnoreNotFound(r.w.kube.Delete(ctx, crd))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// add makes whereabouts give an address to the i-th pod. It repeats a refused call, as a
// kubelet does.
func (r *whereaboutsTool) add(ctx context.Context, i int) error {
	call := cniCall{
		// The plugin enters no namespace, but refuses the namespace that it runs in.
		verb: "ADD", containerID: containerID("rival", i), path: r.w.tools(), sandbox: sandbox{r.w.lab.Switch.Namespace},
		pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("theirs-%d", i)}},
	}
	program := execution{ns: r.w.node().Namespace, path: r.w.tool("whereabouts"), env: append(call.env(), "NODENAME="+realNode), stdin: r.config}
	var raw []byte
	err := await(ctx, "an address from whereabouts", func(ctx context.Context) (err error) {
		if raw, _, err = program.run(ctx); err != nil {
			r.mu.Lock()
			r.retried++
			r.mu.Unlock()
		}
		return err
	})
	if err != nil {
		return err
	}
	var result struct {
		IPs []struct {
			Address netip.Prefix `json:"address"`
		} `json:"ips"`
	}
	if err := json.Unmarshal(raw, &result); err != nil || len(result.IPs) != 1 {
		return errors.Join(err, fmt.Errorf("ADD of whereabouts answered %q", raw))
	}
	addr := result.IPs[0].Address.Addr()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.given[addr] {
		return fmt.Errorf("whereabouts handed %s out twice", addr)
	}
	r.given[addr] = true
	return nil
}
