// Package ovslab runs a real Open vSwitch, with a userspace datapath, in the network namespace
// of a test, and other programs.
package ovslab

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/nft"
	"fairlead.dev/fairlead/test/nettest"
)

// ovsSchema is the schema of the database in Debian's package openvswitch-common.
const ovsSchema = "/usr/share/openvswitch/vswitch.ovsschema"

// OVS is an Open vSwitch with a userspace datapath in a namespace. The end of the test ends
// it.
type OVS struct {
	tb   testing.TB
	host *link.Namespace
	dir  string
}

// New starts Open vSwitch in the namespace of a host, with the bridge br-int, which
// forwards frames as a learning switch does.
func New(tb testing.TB, host *link.Sockets) *OVS {
	tb.Helper()
	nettest.NeedRoot(tb)
	for _, program := range []string{"ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl"} {
		if _, err := exec.LookPath(program); err != nil {
			nettest.Missing(tb, "needs %s: apt-get install openvswitch-switch", program)
		}
	}
	dir, err := os.MkdirTemp("", "ovs") //nolint:usetesting // that of a test is too long for a socket
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	o := &OVS{tb: tb, host: host.Namespace(), dir: dir}
	o.run("ovsdb-tool", "create", o.path("conf.db"), ovsSchema)
	o.StartDatabase()
	o.Ctl("--no-wait", "init")
	o.StartSwitch()
	o.Ctl("add-br", "br-int", "--", "set", "bridge", "br-int", "datapath_type=netdev", "fail-mode=standalone")
	return o
}

// Socket returns the path of the socket of ovsdb-server.
func (o *OVS) Socket() string { return o.path("db.sock") }

func (o *OVS) path(name string) string { return filepath.Join(o.dir, name) }

// StartDatabase starts ovsdb-server, and returns when it answers.
func (o *OVS) StartDatabase() {
	o.tb.Helper()
	o.start("ovsdb-server", o.path("conf.db"), "--remote=punix:"+o.Socket())
}

// StartSwitch starts ovs-vswitchd, and returns when it has configured its bridges.
func (o *OVS) StartSwitch() {
	o.tb.Helper()
	o.start("ovs-vswitchd", "unix:"+o.Socket())
}

// start starts a daemon.
func (o *OVS) start(program string, args ...string) {
	o.tb.Helper()
	o.run(program, append(args, "--detach", "--no-chdir", "-vconsole:off", "-vsyslog:off",
		"--pidfile="+o.path(program), "--unixctl="+o.path(program+".ctl"), "--log-file="+o.path(program+".log"))...)
	o.tb.Cleanup(func() { o.Stop(program) })
}

// Stop ends ovsdb-server or ovs-vswitchd, and waits for its end. It does nothing if the
// program does not run.
func (o *OVS) Stop(program string) {
	o.tb.Helper()
	raw, err := os.ReadFile(o.path(program)) // the program removes it when it ends
	if os.IsNotExist(err) {
		return
	}
	if err != nil {
		o.tb.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		o.tb.Fatal(err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		o.tb.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0); err != nil {
		o.tb.Fatal(err)
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 20_000)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			o.tb.Errorf("%s does not end: %v", program, err)
		}
		return
	}
}

// Ctl runs ovs-vsctl, which waits for ovs-vswitchd, and returns its output.
func (o *OVS) Ctl(args ...string) string {
	o.tb.Helper()
	return o.run("ovs-vsctl", append([]string{"--db=unix:" + o.Socket(), "--timeout=20"}, args...)...)
}

// Ports lists the ports of br-int.
func (o *OVS) Ports() []string {
	o.tb.Helper()
	return strings.Fields(o.Ctl("list-ports", "br-int"))
}

// run runs a program in the namespace of the host, and returns its output.
func (o *OVS) run(program string, args ...string) string {
	o.tb.Helper()
	cmd := exec.CommandContext(o.tb.Context(), program, args...)
	cmd.Env = append(os.Environ(), "OVS_RUNDIR="+o.dir, "OVS_LOGDIR="+o.dir, "OVS_DBDIR="+o.dir, "OVS_SYSCONFDIR="+o.dir)
	var out []byte
	err := o.host.Do(func() (err error) {
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil {
		o.tb.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// Shutter is the packet filter of a host, as a plug.Shutter.
type Shutter struct {
	host   *link.Namespace
	kernel nft.Kernel
}

// NewShutter returns the packet filter of a host.
func NewShutter(s *link.Sockets) *Shutter { return &Shutter{host: s.Namespace()} }

// Shut shuts a link.
func (s *Shutter) Shut(ctx context.Context, link string) error {
	return s.host.Do(func() error { return s.kernel.Shut(ctx, link) })
}

// IsShut reports whether a link is shut.
func (s *Shutter) IsShut(ctx context.Context, link string) (shut bool, err error) {
	err = s.host.Do(func() (err error) {
		shut, err = s.kernel.IsShut(ctx, link)
		return err
	})
	return shut, err
}

// Forget removes what Shut has made.
func (s *Shutter) Forget(ctx context.Context, link string) error {
	return s.host.Do(func() error { return s.kernel.Forget(ctx, link) })
}

// Shut lists the links that are shut.
func (o *OVS) Shut() (links []string) {
	o.tb.Helper()
	for line := range strings.Lines(o.run("nft", "list", "ruleset")) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "chain "); ok {
			links = append(links, strings.TrimSuffix(name, " {"))
		}
	}
	return links
}

// Run runs a program in a namespace, and returns its output.
func Run(tb testing.TB, ns *link.Namespace, program string, args ...string) string {
	tb.Helper()
	if _, err := exec.LookPath(program); err != nil {
		nettest.Missing(tb, "needs %s", program)
	}
	var out []byte
	err := ns.Do(func() (err error) {
		out, err = exec.CommandContext(tb.Context(), program, args...).CombinedOutput()
		return err
	})
	if err != nil {
		tb.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}
