package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containernetworking/cni/libcni"
	cnitypes "github.com/containernetworking/cni/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// crio calls plugins as CRI-O does, whose library ocicni uses libcni, too. It holds the data
// that CRI-O keeps over a restart: the cache of libcni and the sandboxes.
type crio struct {
	n    *labNode
	pods []*labPod
	// As the last start read them.
	networks map[string]*libcni.NetworkConfigList
	byFile   string // the name of the network whose file sorts first, which pods get
}

// start reads the configurations and calls the plugins as CRI-O does at its start: STATUS of
// the pods' network, CHECK of each sandbox, then GC of the network of every file. The valid
// attachments of the pods' network are the pods; the list of every other network is empty.
func (c *crio) start(ctx context.Context) error {
	c.networks, c.byFile = map[string]*libcni.NetworkConfigList{}, ""
	dir := filepath.Dir(c.n.conflist())
	files, err := libcni.ConfFiles(dir, []string{".conf", ".conflist", ".json"})
	if err != nil {
		return err
	}
	slices.Sort(files)
	return c.n.runtime(func(r *libcni.CNIConfig) error {
		for _, file := range files {
			raw, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			list, err := listOf(raw, filepath.Base(file))
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			if _, err := r.ValidateNetworkList(ctx, list); err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			if c.networks[list.Name] == nil {
				c.networks[list.Name] = list
			}
			if c.byFile == "" {
				c.byFile = list.Name
			}
		}
		if err := r.GetStatusNetworkList(ctx, c.networks[c.byFile]); err != nil {
			return fmt.Errorf("STATUS: %w", err)
		}
		for _, p := range c.pods {
			if err := c.cached(r, p, func(list *libcni.NetworkConfigList, conf *libcni.RuntimeConf) error {
				return r.CheckNetworkList(ctx, list, conf)
			}); err != nil {
				return fmt.Errorf("CHECK of %s: %w", p.name, err)
			}
		}
		return c.collect(ctx, r)
	})
}

func (c *crio) collect(ctx context.Context, r *libcni.CNIConfig) error {
	var valid []cnitypes.GCAttachment
	for _, p := range c.pods {
		valid = append(valid, cnitypes.GCAttachment{ContainerID: p.containerID, IfName: "eth0"})
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.networks)) {
		args := &libcni.GCArgs{}
		if name == c.byFile {
			args.ValidAttachments = valid
		}
		if err := r.GCNetworkList(ctx, c.networks[name], args); err != nil {
			errs = append(errs, fmt.Errorf("GC of network %q: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func (c *crio) conf(p *labPod) *libcni.RuntimeConf {
	return p.runtimeConf(c.n.lab.cluster.Namespace, delegate{ifName: "eth0"})
}

// cached calls do with the cached configuration that a pod was attached with.
func (c *crio) cached(r *libcni.CNIConfig, p *labPod, do func(*libcni.NetworkConfigList, *libcni.RuntimeConf) error) error {
	raw, conf, err := r.GetNetworkListCachedConfig(&libcni.NetworkConfigList{Name: c.byFile}, c.conf(p))
	if err != nil {
		return err
	}
	list, err := libcni.NetworkConfFromBytes(raw)
	if err != nil {
		return fmt.Errorf("cached configuration %q of %s: %w", raw, p.name, err)
	}
	return do(list, conf)
}

// setUp attaches a pod and calls CHECK at once.
func (c *crio) setUp(ctx context.Context, p *labPod) error {
	return c.n.runtime(func(r *libcni.CNIConfig) error {
		list := c.networks[c.byFile]
		if _, err := r.AddNetworkList(ctx, list, c.conf(p)); err != nil {
			return fmt.Errorf("ADD: %w", err)
		}
		c.pods = append(c.pods, p)
		if err := r.CheckNetworkList(ctx, list, c.conf(p)); err != nil {
			return fmt.Errorf("CHECK: %w", err)
		}
		return nil
	})
}

// tearDown detaches a pod with its cached configuration.
func (c *crio) tearDown(ctx context.Context, p *labPod) error {
	c.pods = slices.DeleteFunc(c.pods, func(other *labPod) bool { return other == p })
	return c.n.runtime(func(r *libcni.CNIConfig) error {
		return c.cached(r, p, func(list *libcni.NetworkConfigList, conf *libcni.RuntimeConf) error {
			return r.DelNetworkList(ctx, list, conf)
		})
	})
}

// At a restart, CRI-O calls GC for the networks of all files in its directory. It does not
// change running pods, whichever other files lie beside Fairlead's. A sandbox that ended
// meanwhile is removed (own review P1).
func TestCRIO(t *testing.T) {
	for _, tc := range []struct {
		name string
		// first is the network that pods get.
		first string
		// files returns the other configuration files. dir is the directory of the node and
		// socket is the daemon's socket.
		files func(dir, socket string) map[string]string
	}{
		{name: "Multus", first: "multus-cni-network", files: func(dir, _ string) map[string]string {
			return map[string]string{"00-multus.conf": fmt.Sprintf(
				`{"cniVersion":"1.1.0","name":"multus-cni-network","type":"multus","clusterNetwork":%q,"cniDir":%q}`,
				filepath.Join(dir, "conf", "10-fairlead.conflist"), filepath.Join(dir, "multus"))}
		}},
		{name: "an operator's own", first: "fairlead", files: func(_, socket string) map[string]string {
			return map[string]string{
				"20-own.conflist": fmt.Sprintf(`{"cniVersion":"1.1.0","name":"own","plugins":[{"type":"fairlead","socket":%q}]}`, socket),
				"30-ptp.conflist": `{"cniVersion":"1.1.0","name":"ptp","plugins":[{"type":"ptp","ipam":{"type":"host-local","subnet":"10.99.0.0/24"}}]}`,
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, n, pods := oneNode(t, "one", "two", "dies")
			n.runDirectory(t)
			n.reference(t, "main/ptp", "ipam/host-local")
			buildIn(t, "../../..", filepath.Join(n.dir, "bin", "multus"), "./test/multus")
			dir := filepath.Dir(n.conflist())
			for name, text := range tc.files(n.dir, n.socket(t)) {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			before := n.state(t).Links
			c := &crio{n: n}
			if err := c.start(t.Context()); err != nil {
				t.Fatalf("the first start: %v", err)
			}
			if c.byFile != tc.first {
				t.Errorf("pods get network %q, not %q", c.byFile, tc.first)
			}
			for _, p := range pods {
				if err := c.setUp(t.Context(), p); err != nil {
					t.Fatalf("%s: %v", p.name, err)
				}
			}
			wantConnected(t, pods[0], pods[1])

			// One sandbox ends while CRI-O is down, and CRI-O loses its record of it.
			if err := pods[2].netns.Close(); err != nil {
				t.Fatal(err)
			}
			c.pods = c.pods[:2]
			if err := c.start(t.Context()); err != nil {
				t.Errorf("the start with pods: %v", err)
			}
			wantConnected(t, pods[0], pods[1])
			for _, p := range pods[:2] {
				l.wantState(t, p, v1alpha1.SandboxAttached, p.containerID)
			}
			l.release(t, pods[2])
			l.wantState(t, pods[2], v1alpha1.SandboxDetached, pods[2].containerID)

			for _, p := range pods[:2] {
				if err := c.tearDown(t.Context(), p); err != nil {
					t.Errorf("%s: %v", p.name, err)
				}
				l.release(t, p)
			}
			l.wantLinks(t, n, before)
		})
	}
}

// socket returns the daemon's socket from the installed configuration.
func (n *labNode) socket(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile(n.conflist())
	var list struct {
		Plugins []struct{ Socket string }
	}
	if err == nil {
		err = json.Unmarshal(raw, &list)
	}
	if err != nil || len(list.Plugins) == 0 {
		t.Fatalf("%s: %v: %s", n.conflist(), err, raw)
	}
	return list.Plugins[0].Socket
}

// wantConnected checks that two pods have eth0, and that each reaches the other.
func wantConnected(t *testing.T, pods ...*labPod) {
	t.Helper()
	for i, p := range pods {
		if err := p.netns.Do(func() error {
			_, err := net.InterfaceByName("eth0")
			return err
		}); err != nil {
			t.Errorf("eth0 of %s: %v", p.name, err)
			continue
		}
		for family := range p.addresses {
			if _, err := carry(t.Context(), p, pods[1-i], family, 4<<10); err != nil {
				t.Errorf("from %s to %s: %v", p.name, pods[1-i].name, err)
			}
		}
	}
}
