package main

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver/neutron"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/netlab"
	"fairlead.dev/fairlead/test/podrunner/sandbox"
)

// endpoint is a pod or a machine, with its network namespace.
type endpoint struct {
	*netlab.Namespace
	name    string
	address netip.Addr
}

// pod creates a pod on a node.
func (b *bed) pod(name string, n *bedNode, with ...func(*corev1.Pod)) *corev1.Pod {
	b.Helper()
	return b.c.Pod(name, n.Name, with...)
}

// annotated sets an annotation of a pod.
func annotated(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		p.Annotations[key] = value
	}
}

// running waits until a pod runs.
func (b *bed) running(p *corev1.Pod) *endpoint {
	b.Helper()
	e := &endpoint{name: p.Name}
	b.await("pod "+p.Name, func(ctx context.Context) error {
		now, err := b.podOf(ctx, p)
		if err != nil {
			return err
		}
		if now.UID != p.UID || now.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("it is %s; %w", now.Status.Phase, b.warnings(ctx, p))
		}
		if e.address, err = netip.ParseAddr(now.Status.PodIP); err != nil {
			return err
		}
		records, err := sandbox.Read(filepath.Join(b.dir, p.Spec.NodeName, "runner"))
		if err != nil {
			return err
		}
		for _, r := range records {
			if r.UID == p.UID && r.State == sandbox.Ready {
				e.Namespace, err = netlab.OpenNamespace(r.NetnsPath)
				return err
			}
		}
		return errNotYet
	})
	b.Cleanup(func() { _ = e.Close() })
	b.pods.Add(1)
	return e
}

// warnings returns the warning events of a pod.
func (b *bed) warnings(ctx context.Context, p *corev1.Pod) error {
	events := &corev1.EventList{}
	if err := b.c.Client.List(ctx, events, client.InNamespace(p.Namespace)); err != nil {
		return err
	}
	var words []string
	for _, e := range events.Items {
		if e.InvolvedObject.UID == p.UID && e.Type == corev1.EventTypeWarning {
			words = append(words, e.Reason+": "+e.Message)
		}
	}
	return fmt.Errorf("its warnings are %q", words)
}

// delete deletes pods.
func (b *bed) delete(pods ...*corev1.Pod) {
	b.Helper()
	for _, p := range pods {
		if err := client.IgnoreNotFound(b.c.Client.Delete(b.Context(), p.DeepCopy())); err != nil {
			b.Error(err)
		}
	}
}

// records lists the PodAttachments.
func (b *bed) records(ctx context.Context) ([]v1alpha1.PodAttachment, error) {
	list := &v1alpha1.PodAttachmentList{}
	err := b.c.Client.List(ctx, list)
	return list.Items, err
}

// files lists what podrunner and the daemon keep of pods.
func (n *bedNode) files() ([]string, error) {
	var left []string
	for _, pattern := range []string{"netns/*", "runner/sandboxes/*", "state/attachments/*", "state/del/*"} {
		found, err := filepath.Glob(n.path(pattern))
		if err != nil {
			return nil, err
		}
		for _, file := range found {
			left = append(left, n.Name+": file "+filepath.Base(file))
		}
	}
	return left, nil
}

// installed returns nil if the daemon has installed the plugin.
func (n *bedNode) installed() error {
	found, err := filepath.Glob(n.path("conf/*.conflist"))
	if err == nil && len(found) == 0 {
		err = errNotYet
	}
	return err
}

// onPort waits until a pod runs, and returns it with the address of a further interface.
func (b *bed) onPort(p *corev1.Pod, name string) *endpoint {
	b.Helper()
	e := b.running(p)
	record := &v1alpha1.PodAttachment{}
	if err := b.c.Client.Get(b.Context(), client.ObjectKey{Namespace: p.Namespace, Name: pod.AttachmentName(p.Name, p.UID)}, record); err != nil {
		b.Fatal(err)
	}
	for _, i := range record.Spec.Interfaces {
		if i.Name == name && i.Driver == neutron.Name {
			e.address = netip.MustParsePrefix(i.Addresses[0]).Addr()
			return e
		}
	}
	b.Fatalf("pod %s has %+v; want %s on a port of Neutron", p.Name, record.Spec.Interfaces, name)
	return nil
}

// passes waits until packets from an endpoint to another pass, or until they do not.
func (b *bed) passes(what string, from, to *endpoint, want bool, try func(context.Context, *netlab.Namespace, netip.Addr) bool) {
	b.Helper()
	b.await(fmt.Sprintf("%s from %s to %s to pass: %v", what, from.name, to.name, want), func(ctx context.Context) error {
		if got := try(ctx, from.Namespace, to.address); got != want {
			return fmt.Errorf("it passes: %v", got)
		}
		return nil
	})
}

// createPool makes the pool of the native default network.
func (b *bed) createPool() {
	b.Helper()
	pool := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: v1alpha1.IPPoolSpec{Domain: bedName, Ranges: []string{nativeRange + "0/24"}}}
	if err := b.c.Client.Create(b.Context(), pool); err != nil {
		b.Fatal(err)
	}
}

// del runs the plugin as a runtime does that removes a sandbox of a pod.
func (n *bedNode) del(p *corev1.Pod, containerID, netns string) error {
	files, err := libcni.ConfFiles(n.path("conf"), []string{".conflist"})
	if err != nil {
		return err
	}
	list, err := libcni.NetworkConfFromFile(files[0])
	if err != nil {
		return err
	}
	cni := libcni.NewCNIConfigWithCacheDir([]string{n.path("bin")}, n.path("runner/cni"), nil)
	return n.ns.Do(func() error {
		return cni.DelNetworkList(context.Background(), list, &libcni.RuntimeConf{
			ContainerID: containerID, NetNS: netns, IfName: "eth0",
			Args: [][2]string{{"K8S_POD_NAMESPACE", p.Namespace}, {"K8S_POD_NAME", p.Name}, {"K8S_POD_UID", string(p.UID)}, {"K8S_POD_INFRA_CONTAINER_ID", containerID}},
		})
	})
}
