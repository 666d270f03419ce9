package main

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"fairlead.dev/fairlead/internal/cli/check"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/test/cluster"
)

// faultTable is the table of the packet filter that drops large packets to pods.
const faultTable = "e2e_fault"

// checked is the result of a check by the test, as "tcp IPv4".
type checked struct {
	passed, failed map[string]int
	// text is the output for people, with the progress.
	text string
	code int
}

// checkInstalled checks the network of pods of an installation by manifests, whose
// DaemonSet has the image.
func (w *testbed) checkInstalled(ctx context.Context) error {
	got, err := w.check(ctx, w.Admin)
	if err != nil {
		return err
	}
	return w.checkHealthy(got)
}

// checkDNS checks the network of pods of a cluster with a DNS.
func (w *testbed) checkDNS(ctx context.Context) error {
	got, err := w.check(ctx, w.Admin, "--image", fairleadImage+":"+fairleadImageTag)
	if err != nil {
		return err
	}
	return w.checkHealthy(got, "dns")
}

// checkHealthy returns an error unless all tests have passed.
func (w *testbed) checkHealthy(got checked, further ...string) error {
	if err := w.checkPassed(got, further...); err != nil {
		return err
	}
	if got.code != 0 || len(got.failed) > 0 {
		return fmt.Errorf("the check of a healthy cluster: code %d, failed %v:\n%s", got.code, got.failed, got.text)
	}
	lines := strings.Split(strings.TrimSpace(got.text), "\n")
	w.Say("fairlead check: %s", lines[len(lines)-1])
	return nil
}

// checkNetwork checks the network of pods while large packets to pods of a node are lost, and
// the other node does not check the sources of its pods. The check finds these alone. It is
// made with the rights of the operator's guide.
func (w *testbed) checkNetwork(ctx context.Context) error {
	listener, err := w.Net.Switch.Listen(ctx, netip.AddrPortFrom(w.Net.Switch.Addresses()[0].Addr(), 0).String())
	if err != nil {
		return err
	}
	defer listener.Close()
	account, remove, err := w.checkAccount(ctx)
	if err != nil {
		return err
	}
	from, to := w.nodes[0], w.nodes[1]
	if err := w.loseLarge(ctx, to); err != nil {
		return err
	}
	checkAgain, err := from.uncheckSources()
	if err != nil {
		return err
	}
	got, err := w.check(ctx, account, "--image", fairleadImage+":"+fairleadImageTag, "--egress", listener.Addr().String())
	_, undone := w.Programs.Run(ctx, to.place().do, "nft", "delete", "table", "inet", faultTable)
	if err = errors.Join(err, checkAgain(), undone, remove()); err != nil {
		return err
	}
	if err := w.checkPassed(got, "egress"); err != nil {
		return err
	}
	want := map[string]int{}
	for _, f := range w.families() {
		want["size "+f], want["source-address "+f] = 1, 2
	}
	if got.code != 1 || !maps.Equal(got.failed, want) {
		return fmt.Errorf("the check while large packets to pods of %s are lost, and sources of pods of %s are not checked: code %d, failed %v; want 1, %v:\n%s", to.name, from.name, got.code, got.failed, want, got.text)
	}
	for _, finding := range []string{
		fmt.Sprintf("MTU: small packets pass on network default and packets of the pods' MTU do not: %s to %s", from.name, to.name),
		fmt.Sprintf("the packet filter of %[1]s does not check the source addresses on network default, so pods can send with the addresses of others: %[1]s to %[1]s, %[1]s to %[2]s", from.name, to.name),
	} {
		if !strings.Contains(got.text, finding) {
			return fmt.Errorf("the check lacks the finding %q:\n%s", finding, got.text)
		}
		w.Say("the check finds: %s", finding)
	}
	return nil
}

// uncheckSources takes the links of new pods out of the group whose sources the packet filter
// of the node checks, until the returned function is called. A rule that is deleted would be
// there again at once.
func (n *node) uncheckSources() (end func() error, err error) {
	handle, err := n.machine.Netlink()
	if err != nil {
		return nil, err
	}
	events, done := make(chan netlink.LinkUpdate, 64), make(chan struct{})
	if err := n.machine.Do(func() error { return netlink.LinkSubscribe(events, done) }); err != nil {
		handle.Close()
		return nil, fmt.Errorf("watch the links of %s: %w", n.name, err)
	}
	ended := make(chan error, 1)
	go func() {
		var errs []error
		for e := range events {
			if e.Header.Type != unix.RTM_NEWLINK || e.Attrs().Group != link.GroupRouted {
				continue
			}
			if err := handle.LinkSetGroup(e.Link, 0); err != nil && !errors.Is(err, unix.ENODEV) { // the pod may be gone
				errs = append(errs, fmt.Errorf("link %s of %s: %w", e.Attrs().Name, n.name, err))
			}
		}
		ended <- errors.Join(errs...)
	}()
	return func() error {
		defer handle.Close()
		close(done)
		return <-ended
	}, nil
}

// checkAccount makes an account with the rights of docs/operator/check.md. It returns its
// kubeconfig, and a function that removes it.
func (w *testbed) checkAccount(ctx context.Context) (kubeconfig string, remove func() error, err error) {
	guide := filepath.Join(w.Source, "docs/operator/check.md")
	text, err := os.ReadFile(guide)
	if err != nil {
		return "", nil, err
	}
	_, example, found := strings.Cut(string(text), "```yaml\n")
	example, _, ended := strings.Cut(example, "```")
	role := &rbacv1.ClusterRole{}
	if err := yaml.UnmarshalStrict([]byte(example), role); err != nil || !found || !ended {
		return "", nil, fmt.Errorf("%s has no ClusterRole as its example: %w", guide, err)
	}
	owner := metav1.ObjectMeta{Namespace: system, Name: "checks"}
	all := []client.Object{role, &corev1.ServiceAccount{ObjectMeta: owner}, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: owner.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: owner.Namespace, Name: owner.Name}},
	}}
	for _, o := range all {
		if err := w.Create(ctx, o); err != nil {
			return "", nil, err
		}
	}
	kubeconfig = filepath.Join(w.Tmpfs(), "checks.kubeconfig")
	if err := cluster.WriteAccount(ctx, w, w.REST, kubeconfig, owner.Name, nil); err != nil {
		return "", nil, err
	}
	err = w.await(ctx, "the rights of the account", func(ctx context.Context) (string, error) {
		out, err := w.Programs.Run(ctx, w.Net.Switch.Do, filepath.Join(w.programs(), "kubelab"), "kubectl", "--kubeconfig", kubeconfig, "auth", "can-i", "list", "nodes")
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			return out, nil
		}
		return "", err
	})
	return kubeconfig, func() error {
		var errs []error
		for _, o := range all {
			errs = append(errs, w.Delete(ctx, o))
		}
		return errors.Join(errs...)
	}, err
}

// families returns the families of the pods, as the check names them.
func (w *testbed) families() []string {
	var out []string
	for _, r := range w.ranges {
		out = append(out, map[bool]string{true: "IPv4", false: "IPv6"}[r.Addr().Is4()])
	}
	return out
}

// loseLarge has a node drop packets of more than 1300 bytes that come for its pods from
// elsewhere.
func (w *testbed) loseLarge(ctx context.Context, n *node) error {
	rules := []string{
		"add table inet " + faultTable,
		"add chain inet " + faultTable + " in { type filter hook prerouting priority -300; }",
	}
	for _, r := range w.ranges {
		ip := map[bool]string{true: "ip", false: "ip6"}[r.Addr().Is4()]
		rules = append(rules, fmt.Sprintf("add rule inet %s in iifgroup != 159 %s daddr %s meta length > 1300 drop", faultTable, ip, r))
	}
	_, err := w.Programs.Run(ctx, n.place().do, "nft", strings.Join(rules, "; "))
	return err
}

// checkPassed returns an error unless every test that a cluster of this test can make has
// passed between some pods, in each family.
func (w *testbed) checkPassed(got checked, further ...string) error {
	want := slices.Clone(further)
	for _, f := range w.families() {
		for _, t := range []string{"same-node", "tcp", "udp", "size", "from-node", "host-port", "service", "hairpin", "node-port", "source-address"} {
			want = append(want, t+" "+f)
		}
	}
	slices.Sort(want)
	if passed := slices.Sorted(maps.Keys(got.passed)); !slices.Equal(passed, want) {
		return fmt.Errorf("the check passed %v; want %v:\n%s", passed, want, got.text)
	}
	return nil
}

// check runs the operator's command with a kubeconfig, and checks that it leaves nothing in
// the cluster.
func (w *testbed) check(ctx context.Context, kubeconfig string, args ...string) (checked, error) {
	report := filepath.Join(w.Tmpfs(), "check.xml")
	args = append([]string{"--kubeconfig", kubeconfig, "check", "--junit", report}, args...)
	out := checked{passed: map[string]int{}, failed: map[string]int{}}
	text, err := w.Programs.Run(ctx, w.Net.Switch.Do, filepath.Join(w.programs(), "fairlead"), args...)
	out.text = text
	if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		return out, err
	} else if err != nil {
		out.code = 1
	}
	raw, err := os.ReadFile(report)
	if err != nil {
		return out, err
	}
	var suite struct {
		Cases []struct {
			Name    string    `xml:"name,attr"`
			Failure *struct{} `xml:"failure"`
			Skipped *struct{} `xml:"skipped"`
		} `xml:"testcase"`
	}
	if err := xml.Unmarshal(raw, &suite); err != nil {
		return out, fmt.Errorf("the report of fairlead check: %w", err)
	}
	for _, c := range suite.Cases {
		test, rest, _ := strings.Cut(c.Name, " ")
		for _, f := range []string{"IPv4", "IPv6"} {
			if strings.Contains(rest, "by "+f) {
				test += " " + f
			}
		}
		switch {
		case c.Failure != nil:
			out.failed[test]++
		case c.Skipped == nil:
			out.passed[test]++
		}
	}
	left := &corev1.NamespaceList{}
	if err := w.List(ctx, left, client.HasLabels{check.LabelCheck}); err != nil {
		return out, err
	}
	if len(left.Items) > 0 {
		return out, fmt.Errorf("the check left %d namespaces", len(left.Items))
	}
	return out, nil
}
