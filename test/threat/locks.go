package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
)

// lock prevents the success of an attack. It can be opened by configuration, by an object
// that is changed or left out, or by hand.
type lock struct {
	attack string
	how    string // how it is opened
	open   func(ctx context.Context, w *testbed) error
	close  func(ctx context.Context, w *testbed) error
	// shared is true if the next lock may find it open, if that is opened in the same way.
	shared bool
}

// opening is the result of an attack that was tried while its lock was open.
type opening struct {
	row
	how string
}

func locks() []lock {
	return []lock{
		policyLock("node-says-detached", "fairlead-node"),
		policyLock("objects-by-hand", onlyController),
		poolLock("foreign-pool", "private", "the pool has no namespaceSelector", `{"spec":{"namespaceSelector":null}}`,
			`{"spec":{"namespaceSelector":`+jsonOf(pools()[1].Spec.NamespaceSelector)+`}}`),
		quotaLock("quota-pods"), quotaLock("quota-claims"), quotaLock("quota-held"),
		poolLock("route-blocks", "default", "the pool lets a node have 200 blocks", `{"spec":{"maxBlocksPerNode":200}}`,
			fmt.Sprintf(`{"spec":{"maxBlocksPerNode":%d}}`, boundOfBlocks)),
		poolLock("author-pools", "private", "the pool is open to all namespaces and their networks",
			`{"spec":{"namespaceSelector":null,"networkNamespaceSelector":{}}}`,
			`{"spec":{"namespaceSelector":`+jsonOf(pools()[1].Spec.NamespaceSelector)+`,"networkNamespaceSelector":null}}`),
		unbound(onlyController, rightsLock("write-record", asTenant, dropForged, right("podattachments", "create"))),
		// The policy for nodes binds all who may not create records.
		rightsLock("write-status", asTenant, nil, right("podattachments", "create"), right("podattachments/status", "patch")),
		rightsLock("write-pool", asTenant, func(ctx context.Context, w *testbed) error {
			return client.IgnoreNotFound(w.Delete(ctx, &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "hers"}}))
		}, right("ippools", "create")),
		rightsLock("write-node", asTenant, nil, right("nodenetworks", "patch")),
		// The policy for nodes binds all who may not create records.
		rightsLock("plugged-by-hand", asAuthor, nil, right("podattachments", "create"), right("podattachments/status", "patch")),
		rightsLock("read-records", asTenant, nil, right("podattachments", "list")),
		rightsLock("read-blocks", asTenant, nil, right("ipblocks", "list")),
		rightsLock("read-pools", asTenant, nil, right("ippools", "list")),
		rightsLock("read-nodes", asTenant, nil, right("nodenetworks", "list")),
		rightsLock("node-reads-secrets", asDaemon, nil, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets", "pods"}, Verbs: []string{"list"}}),
		unbound(onlyController, rightsLock("node-takes-address", asDaemon, dropForged, right("podattachments", "create"))),
		unbound(onlyController, rightsLock("node-releases", asDaemon, returnFinalizer, right("podattachments", "patch"))),
		rightsLock("node-own-blocks", asDaemon, nil, right("nodenetworks", "patch")),
		policyLock("node-other-network", "fairlead-node"),
		policyLock("node-others-word", "fairlead-node-events"),
		policyLock("token-of-no-node", "fairlead-node"),
		daemonLock("metrics-from-a-pod", "metricsAddress of fairlead-node is :9471", map[string]any{"metricsAddress": ":9471"}),
		daemonLock("metrics-from-outside", "metricsAddress of fairlead-node is :9471", map[string]any{"metricsAddress": ":9471"}),
		daemonLock("hostport-22", "hostPorts.reserved of fairlead-node is empty", noReservedPorts),
		daemonLock("hostport-9470", "hostPorts.reserved of fairlead-node is empty", noReservedPorts),
		daemonLock("hostport-10250", "hostPorts.reserved of fairlead-node is empty", noReservedPorts),
		daemonLock("hostport-53", "hostPorts.reserved of fairlead-node is empty", noReservedPorts),
		daemonLock("hostport-30080", "hostPorts.reserved of fairlead-node is empty", noReservedPorts),
		daemonLock("hostport-6443", "hostPorts.reserved of fairlead-node is empty", noReservedPorts),
		controllerLock("underlay-anywhere", "underlayCIDRs of fairlead-controller is everything", anyUnderlay),
		controllerLock("underlay-anywhere-ipv6", "underlayCIDRs of fairlead-controller is everything", anyUnderlay),
		controllerLock("net-uplink", nodeOpen, openNode),
		controllerLock("net-uplink-vlan", nodeOpen, openNode),
		controllerLock("net-bridge", nodeOpen, openNode),
		controllerLock("net-plugin", nodeOpen, openNode),
		controllerLock("net-chain", nodeOpen, openNode),
		controllerLock("net-host-local", nodeOpen, openNode),
		controllerLock("net-ovs", nodeOpen, openNode),
		controllerLock("cloud-group", cloudOpen, openCloud),
		controllerLock("cloud-qos", cloudOpen, openCloud),
		controllerLock("trunk-machines", cloudOpen, openCloud),
		controllerLock("cloud-network", cloudOpen, openCloud),
		controllerLock("cloud-network-by-id", cloudOpen, openCloud),
		controllerLock("cloud-subnet", cloudOpen, openCloud),
		controllerLock("cloud-anybody", cloudOpen, openCloud),
		controllerLock("net-of-another", "networks.isolated of fairlead-controller is false", func(*testbed) map[string]any {
			networks := openedNetworks()
			networks["isolated"] = false
			// The bridge of the other network is open to all.
			networks["open"] = append(networks["open"].([]map[string]any), map[string]any{"namespaceSelector": map[string]any{}, "bridges": []string{openBridge}})
			return map[string]any{"networks": networks}
		}),
		rulesLock("spoof-ipv4", "inet"),
		rulesLock("spoof-ipv6", "inet"),
		rulesLock("spoof-mac", "inet"),
		rulesLock("spoof-outside", "inet"),
		rulesLock("sources-to-pod-ipv4", "inet"),
		rulesLock("sources-to-pod-ipv6", "inet"),
		rulesLock("sources-to-node-ipv4", "inet"),
		rulesLock("sources-to-node-ipv6", "inet"),
		rulesLock("sources-tagged-ipv4", "inet"),
		rulesLock("sources-tagged-ipv6", "inet"),
		rulesLock("arp-flood", "arp"),
		rulesLock("tunnel-own-node-ipv4", "inet"),
		rulesLock("tunnel-own-node-ipv6", "inet"),
		rulesLock("segments-own-node-ipv4", "inet"),
		rulesLock("segments-own-node-ipv6", "inet"),
		rulesLock("gateway-loop", "inet"),
	}
}

func poolLock(attack, pool, how, open, shut string) lock {
	patch := func(text string) func(ctx context.Context, w *testbed) error {
		return func(ctx context.Context, w *testbed) error { return w.patchPool(ctx, pool, text) }
	}
	return lock{attack, how, patch(open), patch(shut), false}
}

func quotaLock(attack string) lock {
	return poolLock(attack, "shop", "the pool has no quota", `{"spec":{"quota":{"perNamespace":0}}}`, `{"spec":{"quota":{"perNamespace":2}}}`)
}

// daemonLock gives the first node's daemon other settings.
func daemonLock(attack, how string, more map[string]any) lock {
	return lock{
		attack, how,
		func(ctx context.Context, w *testbed) error { return w.restartDaemon(ctx, more) },
		func(ctx context.Context, w *testbed) error { return w.restartDaemon(ctx, nil) },
		true,
	}
}

// controllerLock gives the controllers other settings.
func controllerLock(attack, how string, more func(w *testbed) map[string]any) lock {
	return lock{
		attack, how,
		func(ctx context.Context, w *testbed) error { return w.restartControllers(ctx, more(w)) },
		func(ctx context.Context, w *testbed) error { return w.restartControllers(ctx, nil) },
		true,
	}
}

// Settings that open locks.
var noReservedPorts = map[string]any{"hostPorts": map[string]any{"reserved": []string{}}}

func anyUnderlay(*testbed) map[string]any {
	return map[string]any{"underlayCIDRs": []string{"0.0.0.0/0", "::/0"}}
}

const (
	nodeOpen  = "networks.open of fairlead-controller opens the uplink, a bridge of others and all plugins"
	cloudOpen = "openstack.open of fairlead-controller opens all of the cloud"
)

func openNode(*testbed) map[string]any {
	networks := openedNetworks("eth0")
	open := networks["open"].([]map[string]any)[0]
	open["bridges"], open["plugins"] = []string{openBridge, "br-others"}, []string{"*"}
	return map[string]any{"networks": networks}
}

func openCloud(w *testbed) map[string]any {
	cloud := w.openedCloud("*")
	open := cloud["open"].([]map[string]any)[0]
	open["subnets"], open["portSecurityOff"] = []string{"*"}, true
	open["securityGroups"], open["qosPolicies"] = []string{"*"}, []string{"*"}
	return map[string]any{"openstack": cloud}
}

// rulesLock deletes a table of the first node as soon as the attacker's pod runs, while
// the daemon is stopped and cannot restore it.
func rulesLock(attack, family string) lock {
	return lock{
		attack, "the table " + family + " fairlead is deleted by hand while the daemon hangs",
		func(_ context.Context, w *testbed) error {
			w.forging = forging{
				before: func(ctx context.Context) error {
					if err := w.nodes[0].Daemon.Cmd.Process.Signal(syscall.SIGSTOP); err != nil {
						return err
					}
					_, err := w.nft(ctx, w.nodes[0], "delete", "table", family, "fairlead")
					return err
				},
				after: func(context.Context) error { return w.nodes[0].Daemon.Cmd.Process.Signal(syscall.SIGCONT) },
			}
			return nil
		},
		func(_ context.Context, w *testbed) error {
			w.forging = forging{}
			return nil
		},
		false,
	}
}

// forging has the steps on the node right before packets are forged and after.
type forging struct {
	before, after func(ctx context.Context) error
}

// policyLock leaves an admission policy of deploy/rights without a binding.
func policyLock(attack, policy string) lock {
	return lock{
		attack, "the admission policy " + policy + " is not bound",
		func(ctx context.Context, w *testbed) error {
			return w.dropPolicies(ctx, func(name string) bool { return name == policy })
		},
		func(ctx context.Context, w *testbed) error { return w.applyRights(ctx) },
		false,
	}
}

// unbound opens a second lock with the first: it leaves an admission policy without a binding.
func unbound(policy string, l lock) lock {
	second := policyLock(l.attack, policy)
	return lock{
		l.attack, l.how + ", and " + second.how,
		func(ctx context.Context, w *testbed) error { return errors.Join(l.open(ctx, w), second.open(ctx, w)) },
		func(ctx context.Context, w *testbed) error { return errors.Join(l.close(ctx, w), second.close(ctx, w)) },
		false,
	}
}

// Subjects of rights that no role of deploy/ or of Kubernetes gives.
var (
	asTenant = rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: tenant}
	asAuthor = rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: author}
	asDaemon = rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: cluster.AccountNamespace, Name: cluster.NodeAccount}
)

// right is the rule of one verb on a resource of Fairlead.
func right(resource, verb string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{resource}, Verbs: []string{verb}}
}

// rightsLock gives the attacker rights. undo, if it is not nil, removes the effect of the attack.
func rightsLock(attack string, attacker rbacv1.Subject, undo func(ctx context.Context, w *testbed) error, rights ...rbacv1.PolicyRule) lock {
	const excess = "threat-too-much"
	var names []string
	for _, r := range rights {
		names = append(names, r.Verbs[0]+" "+strings.Join(r.Resources, ", "))
	}
	role := func() *rbacv1.ClusterRole {
		return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: excess}, Rules: rights}
	}
	binding := func() *rbacv1.ClusterRoleBinding {
		return &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: excess}, Subjects: []rbacv1.Subject{attacker},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: excess},
		}
	}
	return lock{
		attack, "a role lets " + attacker.Name + " " + strings.Join(names, " and "),
		func(ctx context.Context, w *testbed) error {
			return errors.Join(w.Create(ctx, role()), w.Create(ctx, binding()))
		},
		func(ctx context.Context, w *testbed) error {
			err := errors.Join(w.Delete(ctx, binding()), w.Delete(ctx, role()))
			if undo != nil {
				err = errors.Join(err, undo(ctx, w))
			}
			return err
		},
		false,
	}
}

// dropForged deletes the record of writeRecord. The controller's collector may have deleted it
// already, because no pod explains it.
func dropForged(ctx context.Context, w *testbed) error {
	return client.IgnoreNotFound(w.Delete(ctx, &v1alpha1.PodAttachment{ObjectMeta: metav1.ObjectMeta{Namespace: tenant, Name: "forged"}}))
}

// returnFinalizer puts the finalizer on the victim's record again.
func returnFinalizer(ctx context.Context, w *testbed) error {
	record, err := w.recordOf(ctx, w.victims.db.Pod)
	if err != nil {
		return err
	}
	return w.Patch(ctx, record, patchOf(`{"metadata":{"finalizers":`+jsonOf([]string{v1alpha1.ReleaseFinalizer})+`}}`))
}

// restartDaemon starts the first node's daemon anew with other settings.
func (w *testbed) restartDaemon(ctx context.Context, more map[string]any) error {
	w.nodes[0].Daemon.Kill()
	if err := w.startDaemon(w.nodes[0], more); err != nil {
		return err
	}
	return await(ctx, "the nodes", w.nodesReady)
}

// restartControllers starts both controllers anew with other settings.
func (w *testbed) restartControllers(ctx context.Context, more map[string]any) error {
	w.standby.Kill()
	w.settings = more
	return w.changeLeader(ctx)
}

// lockDelay is how long the API server and the controller may take until an opened lock
// has its effect.
const lockDelay = 15 * time.Second

// openLocks opens one lock after the other and tries its attack. Shared locks that are opened in the
// same way stay open for all their attacks.
func (w *testbed) openLocks(ctx context.Context) ([]opening, error) {
	wanted, err := regexp.Compile(w.Only)
	if err != nil {
		return nil, err
	}
	var out []opening
	selected := slices.DeleteFunc(locks(), func(l lock) bool { return !wanted.MatchString(l.attack) })
	for i, l := range selected {
		if i == 0 || selected[i-1].how != l.how || !l.shared {
			if err := l.open(ctx, w); err != nil {
				return nil, fmt.Errorf("open the lock of %s: %w", l.attack, err)
			}
		}
		o := opening{how: l.how}
		for start := time.Now(); ; {
			if o.row, err = w.tryOne(ctx, attackNamed(l.attack)); err != nil {
				return nil, err
			}
			if o.succeededAtAll() || time.Since(start) > lockDelay {
				break
			}
		}
		if i == len(selected)-1 || selected[i+1].how != l.how || !l.shared {
			if err := l.close(ctx, w); err != nil {
				return nil, fmt.Errorf("close the lock of %s: %w", l.attack, err)
			}
		}
		out = append(out, o)
	}
	return out, nil
}

// printLocks prints the attacks that were tried with an open lock.
func (w *testbed) printLocks(opened []opening) {
	_, _ = fmt.Fprintln(w.Out, "ATTACKS WITH AN OPEN LOCK")
	for _, o := range opened {
		seen := "did NOT succeed"
		if o.succeededAtAll() {
			seen = "succeeds: " + oneLine(o.got+noticedWords(o.noticed))
		}
		_, _ = fmt.Fprintf(w.Out, "%-24s when %s\n%-34s -> %s\n", o.id, o.how, "", seen)
	}
	_, _ = fmt.Fprintln(w.Out)
}
