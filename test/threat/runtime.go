package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"fairlead.dev/fairlead/internal/netdev/host"
	"fairlead.dev/fairlead/test/netlab"
	"fairlead.dev/fairlead/test/podrunner/sandbox"
)

const byRuntime = "runtime"

// tunnelMAC returns the MAC of a node's end of the tunnel.
func tunnelMAC(name string) string { return host.TunnelMAC(name).String() }

// call is one execution of the plugin on the first node.
type call struct {
	program string // fairlead unless it is set
	verb    string
	id      string
	netns   string
	ifname  string
	args    string // CNI_ARGS
	config  map[string]any
}

// execute runs the plugin and returns its output, and whether it succeeded.
func (w *testbed) execute(ctx context.Context, c call) (string, bool, error) {
	n := w.nodes[0]
	stdin, err := json.Marshal(c.config)
	if err != nil {
		return "", false, err
	}
	if c.program == "" {
		c.program = "fairlead"
	}
	var out bytes.Buffer
	cmd := exec.Command(filepath.Join(n.BinDir(), c.program))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &out
	cmd.Env = []string{
		"CNI_COMMAND=" + c.verb, "CNI_CONTAINERID=" + c.id, "CNI_NETNS=" + c.netns, "CNI_IFNAME=" + c.ifname, "CNI_ARGS=" + c.args, "CNI_PATH=" + n.BinDir(),
	}
	if err := n.Start(cmd); err != nil {
		return "", false, err
	}
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })()
	err = cmd.Wait()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		return "", false, err
	}
	text := strings.TrimSpace(out.String())
	if text == "" {
		text = "success"
	}
	return text, err == nil, nil
}

// config returns the configuration that the runtime passes to the plugin: the installed
// one, with the changes of an attack.
func (w *testbed) config(more map[string]any) (map[string]any, error) {
	raw, err := os.ReadFile(filepath.Join(w.nodes[0].ConfDir(), "10-fairlead.conflist"))
	if err != nil {
		return nil, err
	}
	var list struct {
		Name    string
		Plugins []map[string]any
	}
	if err := json.Unmarshal(raw, &list); err != nil || len(list.Plugins) == 0 {
		return nil, fmt.Errorf("the installed configuration %s: %w", raw, err)
	}
	config := list.Plugins[0]
	config["name"], config["cniVersion"] = list.Name, "1.1.0"
	maps.Copy(config, more)
	return config, nil
}

// runtimeCall returns an attack by a call on the victim db's sandbox, made by a runtime
// or caused by a configuration. Its effect is the harm that the victim notices.
func runtimeCall(id, tries string, change map[string]any, prepare func(w *testbed, box sandbox.Record) call) attack {
	return attack{
		id: id, by: byRuntime, tries: tries,
		do: func(ctx context.Context, w *testbed) (effect, error) {
			box, err := w.nodes[0].boxOf(w.victims.db.UID)
			if err != nil {
				return effect{}, err
			}
			c := prepare(w, box)
			if c.config, err = w.config(change); err != nil {
				return effect{}, err
			}
			text, _, err := w.execute(ctx, c)
			return effect{false, c.verb + ": " + text}, err
		},
	}
}

func argsOf(uid string) string {
	return "IgnoreUnknown=1;K8S_POD_NAMESPACE=" + victim + ";K8S_POD_NAME=db;K8S_POD_UID=" + uid
}

func gc(*testbed, sandbox.Record) call { return call{verb: "GC"} }

// runtimeAttacks are calls that treat live sandboxes as dead, or confuse sandboxes.
func runtimeAttacks() []attack {
	return []attack{
		runtimeCall("gc-null", "GC of another network, with null for the living", map[string]any{"name": "another", "cni.dev/valid-attachments": nil}, gc),
		runtimeCall("gc-empty", "GC of our network, with an empty list of the living", map[string]any{"cni.dev/valid-attachments": []any{}}, gc),
		runtimeCall("gc-without-list", "GC of our network, without a list", nil, gc),
		runtimeCall("del-other-name", "DEL of an interface of the victim's sandbox that does not exist", nil, func(_ *testbed, box sandbox.Record) call {
			return call{verb: "DEL", id: box.ID, netns: box.NetnsPath, ifname: "other0"}
		}),
		runtimeCall("del-other-container", "DEL of another container, with the victim's namespace", nil, func(w *testbed, box sandbox.Record) call {
			return call{verb: "DEL", id: "0123456789abcdef", netns: box.NetnsPath, ifname: "eth0", args: argsOf(string(w.victims.db.UID))}
		}),
		runtimeCall("add-refused-then-del", "DEL of a second interface, whose ADD was refused", nil, func(_ *testbed, box sandbox.Record) call {
			return call{verb: "DEL", id: box.ID, netns: box.NetnsPath, ifname: "net1"}
		}),
		{id: "check-other-name", by: byRuntime, tries: "CHECK of an interface that the sandbox does not have", do: checkOther},
		{id: "add-again", by: byRuntime, tries: "ADD of the victim's pod once more, into another sandbox", do: addAgain("")},
		{id: "add-as-victim", by: byRuntime, tries: "ADD of a sandbox of the attacker's with the victim's name and another UID", do: addAgain("11111111-2222-3333-4444-555555555555")},
		{id: "container-id-path", by: byRuntime, tries: "a container ID that leads out of the daemon's directory", do: containerPath},
	}
}

func checkOther(ctx context.Context, w *testbed) (effect, error) {
	box, err := w.nodes[0].boxOf(w.victims.db.UID)
	if err != nil {
		return effect{}, err
	}
	config, err := w.config(map[string]any{"prevResult": map[string]any{"cniVersion": "1.1.0"}})
	if err != nil {
		return effect{}, err
	}
	text, fine, err := w.execute(ctx, call{verb: "CHECK", id: box.ID, netns: box.NetnsPath, ifname: "other0", config: config})
	return effect{fine, text}, err
}

// addAgain returns an attack that executes ADD for the victim's pod in a new namespace,
// with its UID or another one. It succeeds if the namespace has the victim's address.
func addAgain(uid string) func(ctx context.Context, w *testbed) (effect, error) {
	return func(ctx context.Context, w *testbed) (out effect, err error) {
		ns, err := netlab.NewNamespace()
		if err != nil {
			return out, err
		}
		path := filepath.Join(w.nodes[0].NetnsDir(), "again")
		if err := ns.Pin(path); err != nil {
			return out, err
		}
		config, err := w.config(nil)
		if err != nil {
			return out, err
		}
		if uid == "" {
			uid = string(w.victims.db.UID)
		}
		c := call{verb: "ADD", id: sandbox.NewID(), netns: path, ifname: "eth0", args: argsOf(uid), config: config}
		text, _, err := w.execute(ctx, c)
		if err != nil {
			return out, err
		}
		out.got = text
		err = ns.Do(func() error {
			addrs, err := net.InterfaceAddrs()
			for _, a := range addrs {
				out.succeeded = out.succeeded || strings.HasPrefix(a.String(), dbAddress(w)+"/")
			}
			return err
		})
		if err != nil {
			return out, err
		}
		c.verb = "DEL"
		_, _, err = w.execute(ctx, c)
		return out, errors.Join(err, ns.Close())
	}
}

func containerPath(ctx context.Context, w *testbed) (effect, error) {
	config, err := w.config(map[string]any{"socket": filepath.Join(w.Tmpfs(), "nobody.sock")})
	if err != nil {
		return effect{}, err
	}
	text, _, err := w.execute(ctx, call{verb: "DEL", id: "../../escaped", ifname: "eth0", config: config})
	if err != nil {
		return effect{}, err
	}
	found, err := filepath.Glob(filepath.Join(w.Tmpfs(), "*escaped*"))
	more, err2 := filepath.Glob(filepath.Join(w.nodes[0].Dir, "*escaped*"))
	return effect{len(found)+len(more) > 0, text}, errors.Join(err, err2)
}

// pathAttacks use paths in an author's configuration, which the runtime passes to the
// plugin, which is root.
func pathAttacks() []attack {
	makes := func(id, tries, root string, config func(dir string) map[string]any) attack {
		return attack{
			id: id, by: byAuthor, tries: tries,
			do: func(ctx context.Context, w *testbed) (effect, error) {
				base := filepath.Join(root, id)
				if root == "" {
					base = filepath.Join(w.Tmpfs(), id)
				}
				text, err := w.delWith(ctx, config(filepath.Join(base, "made", "by", "root")))
				if err != nil {
					return effect{}, err
				}
				_, err = os.Stat(base)
				if err != nil && !errors.Is(err, os.ErrNotExist) {
					return effect{}, err
				}
				return effect{err == nil, text}, nil
			},
		}
	}
	fills := func(id, tries, root string, mode os.FileMode, owner int) attack {
		return attack{
			id: id, by: byAuthor, tries: tries,
			do: func(ctx context.Context, w *testbed) (effect, error) {
				dir := filepath.Join(root, id)
				if root == "" {
					dir = filepath.Join(w.Tmpfs(), id)
				}
				if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, mode), os.Chown(dir, owner, owner)); err != nil {
					return effect{}, err
				}
				text, err := w.delWith(ctx, spoolConfig(dir))
				if err != nil {
					return effect{}, err
				}
				entries, err := os.ReadDir(dir)
				return effect{len(entries) > 0, text}, err
			},
		}
	}
	return []attack{
		makes("spool-path", "a network's spool is where there is no directory", "", spoolConfig),
		makes("spool-path-in-run", "the same, below /run", "/run", spoolConfig),
		makes("ipam-socket-path", "a network's ipam has a socket where there is no directory", "/run", func(dir string) map[string]any {
			return map[string]any{"cniVersion": "1.0.0", "name": "x", "type": "macvlan", "ipam": map[string]any{"type": "fairlead-ipam", "socket": filepath.Join(dir, "none.sock")}}
		}),
		fills("spool-of-root", "a network's spool is a directory of root that is not the daemon's", "", 0o700, 0),
		fills("spool-of-another", "a network's spool is a directory below /run that is not root's", "/run", 0o700, nobody),
		fills("spool-of-all", "a network's spool is a directory below /run that all users may write to", "/run", 0o777, 0),
		{id: "socket-of-another", by: byAuthor, tries: "a network's socket is served by a user who is not root", do: foreignSocket},
	}
}

// spoolConfig returns a configuration with a spool whose daemon is away.
func spoolConfig(dir string) map[string]any {
	return map[string]any{"cniVersion": "1.0.0", "name": "x", "type": "fairlead", "socket": filepath.Join(dir, "none.sock"), "spool": dir}
}

// delWith executes a DEL with an author's configuration, by the plugin of its ipam if it
// has one.
func (w *testbed) delWith(ctx context.Context, config map[string]any) (string, error) {
	c := call{verb: "DEL", id: sandbox.NewID(), ifname: "net1", config: config}
	if config["ipam"] != nil {
		c.program = "fairlead-ipam"
	}
	text, _, err := w.execute(ctx, c)
	return text, err
}

// nobody is a user without rights.
const nobody = 65534

func foreignSocket(ctx context.Context, w *testbed) (effect, error) {
	path := filepath.Join(w.Tmpfs(), "foreign.sock")
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return effect{}, err
	}
	defer listener.Close()
	if err := errors.Join(os.Chown(path, nobody, nobody), os.Chmod(path, 0o777)); err != nil {
		return effect{}, err
	}
	read := make(chan string, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_ = conn.SetReadDeadline(time.Now().Add(time.Second))
		buffer := make([]byte, 4096)
		if n, err := conn.Read(buffer); err == nil {
			read <- string(buffer[:n])
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	text, _, err := w.execute(ctx, call{verb: "ADD", id: sandbox.NewID(), netns: w.nodes[0].Path(), ifname: "net1", args: argsOf("x"), config: map[string]any{
		"cniVersion": "1.0.0", "name": "x", "type": "fairlead", "socket": path,
	}})
	if err != nil {
		return effect{}, err
	}
	select {
	case got := <-read:
		return effect{true, "root's plugin sent it " + oneLine(got)}, nil
	default:
		return effect{false, text}, nil
	}
}
