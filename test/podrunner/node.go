package main

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Kubelet's intervals.
const (
	leaseSeconds   = 40
	leaseInterval  = 10 * time.Second
	statusInterval = 5 * time.Minute // if nothing has changed
	readyInterval  = 5 * time.Second // between two checks of the network
	// A network that is not ready is checked more often than by kubelet, so that
	// demonstrations take less time.
	unreadyInterval = 500 * time.Millisecond
)

// node maintains one Node object.
type node struct {
	name    string
	labels  map[string]string
	taints  []corev1.Taint
	ips     []string
	maxPods int64
	bootID  string
	client  kubernetes.Interface
	// status asks the network plugins; it returns nil if they could serve an ADD.
	status func(context.Context) error

	lock       sync.Mutex
	networkErr error
}

// networkReady returns the last status of the network plugins.
func (n *node) networkReady() error {
	n.lock.Lock()
	defer n.lock.Unlock()
	return n.networkErr
}

// run keeps the Node and its Lease up to date until ctx ends. The Node stays.
func (n *node) run(ctx context.Context) error {
	log := logr.FromContextOrDiscard(ctx)
	registered := false
	var written corev1.NodeCondition
	var nextStatus, nextLease time.Time
	for {
		networkErr := n.status(ctx)
		n.lock.Lock()
		n.networkErr = networkErr
		n.lock.Unlock()

		pause := readyInterval
		if networkErr != nil {
			pause = unreadyInterval
		}
		var err error
		if !registered {
			err = n.register(ctx)
			registered = err == nil
		}
		now := time.Now()
		if ready := n.readyCondition(networkErr); err == nil && (ready.Status != written.Status || ready.Message != written.Message || now.After(nextStatus)) {
			if err = n.writeStatus(ctx, ready); err == nil {
				written, nextStatus = ready, now.Add(statusInterval)
			}
		}
		if err == nil && now.After(nextLease) {
			if err = n.renew(ctx); err == nil {
				nextLease = now.Add(leaseInterval)
			}
		}
		if err != nil && ctx.Err() == nil {
			log.Error(err, "the node was not reported")
			pause = unreadyInterval
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// register creates the Node if it does not exist.
func (n *node) register(ctx context.Context) error {
	_, err := n.client.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return wrapNode("read", n.name, err)
	}
	object := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: map[string]string{
			corev1.LabelHostname:   n.name,
			corev1.LabelOSStable:   "linux",
			corev1.LabelArchStable: runtime.GOARCH,
		}},
		Spec: corev1.NodeSpec{Taints: n.taints},
	}
	maps.Copy(object.Labels, n.labels)
	_, err = n.client.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return wrapNode("create", n.name, err)
}

func (n *node) readyCondition(networkErr error) corev1.NodeCondition {
	condition := corev1.NodeCondition{
		Type:    corev1.NodeReady,
		Status:  corev1.ConditionTrue,
		Reason:  "KubeletReady",
		Message: "the pod runner is posting ready status",
	}
	if networkErr != nil {
		condition.Status, condition.Reason = corev1.ConditionFalse, "KubeletNotReady"
		condition.Message = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network plugin returns error: " + networkErr.Error()
	}
	return condition
}

// writeStatus writes the fields of a node's status that kubelet writes, as far as they
// apply here.
func (n *node) writeStatus(ctx context.Context, ready corev1.NodeCondition) error {
	now := metav1.Now()
	ready.LastHeartbeatTime, ready.LastTransitionTime = now, now
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(int64(runtime.NumCPU())*16, resource.DecimalSI), // pods use none
		corev1.ResourceMemory: resource.MustParse("64Gi"),
		corev1.ResourcePods:   *resource.NewQuantity(n.maxPods, resource.DecimalSI),
	}
	status := corev1.NodeStatus{
		Capacity:    capacity,
		Allocatable: capacity,
		Conditions:  []corev1.NodeCondition{ready},
		Addresses:   []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: n.name}},
		NodeInfo: corev1.NodeSystemInfo{
			MachineID:               firstLine("/etc/machine-id"),
			BootID:                  n.bootID,
			KernelVersion:           kernelRelease(),
			OSImage:                 "pod runner",
			ContainerRuntimeVersion: "podrunner://0",
			KubeletVersion:          "v1.36.0-podrunner",
			OperatingSystem:         "linux",
			Architecture:            runtime.GOARCH,
		},
	}
	for _, ip := range n.ips {
		status.Addresses = append(status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	for _, pressure := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		status.Conditions = append(status.Conditions, corev1.NodeCondition{
			Type: pressure, Status: corev1.ConditionFalse, Reason: "KubeletHasNoPressure",
			LastHeartbeatTime: now, LastTransitionTime: now,
		})
	}
	patch, err := statusPatch("", status, "addresses")
	if err != nil {
		return fmt.Errorf("encode the status of node %s: %w", n.name, err)
	}
	_, err = n.client.CoreV1().Nodes().PatchStatus(ctx, n.name, patch)
	return wrapNode("report", n.name, err)
}

// renew renews the Lease of the node.
func (n *node) renew(ctx context.Context) error {
	leases := n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	now, seconds := metav1.NowMicro(), int32(leaseSeconds)
	spec := coordinationv1.LeaseSpec{HolderIdentity: &n.name, LeaseDurationSeconds: &seconds, RenewTime: &now}
	lease, err := leases.Get(ctx, n.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: n.name}, Spec: spec}, metav1.CreateOptions{})
	case err == nil:
		lease = lease.DeepCopy()
		lease.Spec = spec
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	}
	return wrapNode("renew the lease of", n.name, err)
}

func wrapNode(what, name string, err error) error {
	if err != nil {
		return fmt.Errorf("%s node %s: %w", what, name, err)
	}
	return nil
}

// nodeAddresses returns the first IPv4 and the first IPv6 address of this network
// namespace that others can reach, IPv4 first.
func nodeAddresses() ([]string, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var v4, v6 []string
	for _, addr := range addrs {
		network, ok := addr.(*net.IPNet)
		if !ok || !network.IP.IsGlobalUnicast() {
			continue
		}
		if network.IP.To4() != nil {
			v4 = append(v4, network.IP.String())
		} else {
			v6 = append(v6, network.IP.String())
		}
	}
	var out []string
	for _, family := range [][]string{v4, v6} {
		if len(family) > 0 {
			out = append(out, family[0])
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no address that other nodes could reach; the interfaces have %v", addrs)
	}
	return out, nil
}

func kernelRelease() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Release[:])
}

// firstLine returns the first line of a file, empty if it cannot be read.
func firstLine(path string) string {
	raw, _ := os.ReadFile(path)
	line, _, _ := strings.Cut(string(raw), "\n")
	return line
}

// parseTaints parses key=value:Effect, comma separated, as in kubelet's
// --register-with-taints.
func parseTaints(text string) ([]corev1.Taint, error) {
	var out []corev1.Taint
	for item := range strings.SplitSeq(text, ",") {
		if item == "" {
			continue
		}
		pair, effect, ok := strings.Cut(item, ":")
		key, value, _ := strings.Cut(pair, "=")
		if !ok || key == "" || effect == "" {
			return nil, fmt.Errorf("taint %q: must be key=value:Effect", item)
		}
		out = append(out, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)})
	}
	return out, nil
}

// parseLabels parses key=value, comma separated, as in kubelet's --node-labels.
func parseLabels(text string) (map[string]string, error) {
	out := map[string]string{}
	for item := range strings.SplitSeq(text, ",") {
		if item == "" {
			continue
		}
		key, value, ok := strings.Cut(item, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("label %q: must be key=value", item)
		}
		out[key] = value
	}
	return out, nil
}
