// Package lab runs a real OpenStack network service on this machine: Keystone, Neutron with
// ML2/OVN, MariaDB and OVN's databases from Debian's packages, and chassis, each with an
// Open vSwitch of its own. It needs root, and neither systemd nor a message queue nor a
// module of the kernel beyond veth, bridge and tun.
//
//	l, err := lab.Up(ctx, lab.Options{})     // or, in a test: l := lab.Use(t)
//	defer l.Down(ctx)
//	a, err := l.Chassis(ctx, "a", 11)
//	neutron, err := l.Network(ctx, lab.K8s)
//
// The API services listen on the loopback of the network namespace in which Up is called,
// on free ports, so that tests and programs reach them directly. Programs in another
// namespace reach them by netlab.Forward. Databases, OVN and Open vSwitch listen on unix
// sockets only. Each chassis is a network namespace, and the bridge that joins the chassis
// is in a namespace too. All names, ports and files belong to one laboratory, so that
// several can run at the same time.
//
// The laboratory ends by Down. Its programs outlive a process that is killed; the next Up
// on the machine ends them.
package lab

import (
	"bufio"
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"fairlead.dev/fairlead/test/harness"
)

// Clouds of clouds.yaml. A laboratory without Keystone has only Admin.
const (
	Admin  = "lab-admin"  // administrator of everything
	K8s    = "lab-k8s"    // administrator in the project k8s
	Member = "lab-member" // ordinary member of the project member
)

// Services that can be killed.
const (
	Keystone = "keystone"
	Neutron  = "neutron"
	Database = "database"
	Northd   = "northd"
)

// labFile has the Lab of a state directory, as JSON, when all services answer.
const labFile = "lab.json"

// downTimeout bounds the end of a laboratory whose start failed.
const downTimeout = time.Minute

//go:embed scripts
var scripts embed.FS

// Options are the choices of a laboratory. The zero value is OpenStack Zed with Keystone.
type Options struct {
	// Release is the Debian release of the packages: "bookworm" with OpenStack Zed, which
	// is the default, or "trixie" with OpenStack 2025.1.
	Release string
	// State is the directory of the laboratory; it must be missing. By default it is a new
	// one in the directory for temporary files. It is short, because sockets are in it.
	State string
	// Cache is the directory of the packages and of the empty database, which laboratories
	// share. By default it is bin/openstack in the checkout.
	Cache string
	// Light omits Keystone. Neutron believes the headers of requests then.
	Light bool
	// Octavia adds the load balancer service with the OVN provider.
	Octavia bool
	// BulkTags has Neutron keep the tags of POST requests, which most clouds drop.
	BulkTags bool
	// Pairs is how many allowed address pairs a port may have; 0 is Neutron's default, 10.
	Pairs int
	// Out receives lines of progress; nil discards them.
	Out io.Writer
}

// Lab is a running laboratory.
type Lab struct {
	// State is the directory with logs, sockets and wrappers of the programs (bin).
	State string
	// Release is the Debian release of the packages.
	Release string
	// Clouds is the path of clouds.yaml.
	Clouds string
	// KeystoneURL is empty without Keystone, OctaviaURL without Octavia.
	KeystoneURL, NeutronURL, OctaviaURL string
	// OVNNorthbound and OVNSouthbound are the remotes of OVN's databases, as unix:/path.
	OVNNorthbound, OVNSouthbound string

	// Namespace is the network namespace of the bridge between the chassis; the names of
	// their namespaces begin with it.
	Namespace string
	// Owner is the ID of the process that ends the laboratory.
	Owner int

	owner *os.File // locked while the laboratory has an owner; nil in other processes
}

// Up starts a laboratory, which takes some 10 seconds, and a minute more when the cache is
// empty. It ends the laboratories whose owner has died. On an error nothing is left of this
// one, and the error has the end of the log.
func Up(ctx context.Context, o Options) (l *Lab, err error) {
	if err := sweep(ctx); err != nil {
		return nil, err
	}
	s, err := o.settings()
	if err != nil {
		return nil, err
	}
	dir, owner, err := own(o.State)
	if err != nil {
		return nil, err
	}
	l = s.lab(dir)
	l.owner = owner
	if err := l.start(ctx, s, o.Out); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx) // the script was ended
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), downTimeout)
		defer cancel()
		return nil, errors.Join(fmt.Errorf("start the OpenStack laboratory: %w", err), l.Down(ctx))
	}
	return l, nil
}

// start writes settings and scripts into the state directory, and starts all services.
func (l *Lab) start(ctx context.Context, s settings, out io.Writer) error {
	for _, name := range []string{"run", "log"} {
		if err := os.Mkdir(l.path(name), 0o700); err != nil {
			return err
		}
	}
	if err := os.CopyFS(l.State, scripts); err != nil {
		return fmt.Errorf("write the scripts: %w", err)
	}
	if err := os.WriteFile(l.path("settings"), []byte(s.String()), 0o600); err != nil {
		return err
	}
	// The files of an embed.FS are not executable.
	for _, name := range []string{"exec.sh", "packages.sh", "root.sh"} {
		if err := os.Chmod(l.path("scripts", name), 0o700); err != nil {
			return err
		}
	}
	if err := l.script(ctx, out, "up.sh"); err != nil {
		return err
	}
	raw, err := json.Marshal(l)
	if err != nil {
		return err
	}
	return os.WriteFile(l.path(labFile), raw, 0o600)
}

// Open returns the laboratory that another process has started in a state directory. Down
// is left to that process.
func Open(dir string) (*Lab, error) {
	raw, err := os.ReadFile(filepath.Join(dir, labFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s is no state directory of a running OpenStack laboratory: make openstack-lab starts one", dir)
	}
	if err != nil {
		return nil, fmt.Errorf("open the OpenStack laboratory: %w", err)
	}
	l := &Lab{}
	if err := json.Unmarshal(raw, l); err != nil {
		return nil, fmt.Errorf("open the OpenStack laboratory of %s: %w", dir, err)
	}
	return l, nil
}

// Down ends the laboratory with all chassis, and removes its directory. It returns an error
// if a process or a mount is left. It does nothing in a process that did not start the
// laboratory.
func (l *Lab) Down(ctx context.Context) error {
	if l.owner == nil {
		return nil
	}
	err := down(ctx, l.State)
	return errors.Join(err, l.owner.Close())
}

func down(ctx context.Context, dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "settings")); errors.Is(err, os.ErrNotExist) {
		return os.RemoveAll(dir) // nothing has started
	}
	l := &Lab{State: dir}
	if err := l.script(ctx, nil, "down.sh"); err != nil {
		return fmt.Errorf("end the OpenStack laboratory: %w", err)
	}
	left, err := harness.Work(dir).Left()
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("left of the OpenStack laboratory %s: %s", dir, strings.Join(left, ", "))
	}
	return nil
}

// Kill ends a service at once, as a crash does. Resume starts it again.
func (l *Lab) Kill(service string) error {
	raw, err := os.ReadFile(l.path("run", service+".id"))
	if err != nil {
		return fmt.Errorf("kill %s of the OpenStack laboratory: %w", service, err)
	}
	var pid, start int
	if _, err := fmt.Sscan(string(raw), &pid, &start); err != nil || pid <= 1 {
		return fmt.Errorf("kill %s of the OpenStack laboratory: %q is no process ID with a start time", service, raw)
	}
	// Every service leads a session, and so a process group with its workers.
	if err := syscall.Kill(-pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill %s of the OpenStack laboratory: %w", service, err)
	}
	return nil
}

// Resume starts the services that have ended, and returns when all answer.
func (l *Lab) Resume(ctx context.Context) error { return l.script(ctx, nil, "up.sh") }

// Env is the environment of this process with the mark of the laboratory: processes that
// have it end with the laboratory.
func (l *Lab) Env() []string { return append(os.Environ(), "FAIRLEAD_OPENSTACK_PART="+l.State) }

// script runs one of the scripts in a session of its own, so that an interrupt from the
// terminal does not reach it. When the context ends it is ended with its children.
func (l *Lab) script(ctx context.Context, out io.Writer, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, "bash", append([]string{l.path("scripts", name), l.State}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if name != "down.sh" { // which ends all processes that have the mark
		cmd.Env = l.Env()
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	var err error
	if out == nil {
		err = cmd.Run()
	} else {
		err = withProgress(cmd, out)
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, errors.Join(err, context.Cause(ctx)), bytes.TrimSpace(stderr.Bytes()))
	}
	return nil
}

// withProgress runs a command and reports each line of its output with the time.
func withProgress(cmd *exec.Cmd, out io.Writer) error {
	report := harness.Reporter{Out: out, Start: time.Now()}
	read, write := io.Pipe()
	cmd.Stdout = write
	done := make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(read); lines.Scan(); {
			report.Say("%s", lines.Text())
		}
	}()
	err := cmd.Run()
	_ = write.Close()
	<-done
	return err
}

func (l *Lab) path(names ...string) string {
	return filepath.Join(append([]string{l.State}, names...)...)
}

// settings are the variables that the scripts read.
type settings struct {
	codename, cache, root    string
	light, octavia, bulkTags bool
	pairs                    int
	netns                    string
	ports                    [3]int // Keystone, Neutron, Octavia
}

func (s settings) String() string {
	yes := map[bool]string{false: "no", true: "yes"}
	pairs := ""
	if s.pairs > 0 {
		pairs = strconv.Itoa(s.pairs)
	}
	var out strings.Builder
	for _, v := range [][2]string{
		{"codename", s.codename},
		{"cache", s.cache},
		{"root", s.root},
		{"light", yes[s.light]},
		{"octavia_wanted", yes[s.octavia]},
		{"bulk_tags", yes[s.bulkTags]},
		{"pairs", pairs},
		{"netns", s.netns},
		{"keystone_port", strconv.Itoa(s.ports[0])},
		{"neutron_port", strconv.Itoa(s.ports[1])},
		{"octavia_port", strconv.Itoa(s.ports[2])},
	} {
		fmt.Fprintf(&out, "%s='%s'\n", v[0], strings.ReplaceAll(v[1], "'", `'\''`))
	}
	return out.String()
}

// lab returns the laboratory of a state directory.
func (s settings) lab(dir string) *Lab {
	l := &Lab{State: dir, Release: s.codename, Namespace: s.netns, Owner: os.Getpid()}
	l.Clouds = l.path("clouds.yaml")
	l.OVNNorthbound, l.OVNSouthbound = "unix:"+l.path("run", "nb.sock"), "unix:"+l.path("run", "sb.sock")
	url := func(i int) string { return "http://127.0.0.1:" + strconv.Itoa(s.ports[i]) }
	l.NeutronURL = url(1)
	if !s.light {
		l.KeystoneURL = url(0) + "/v3"
	}
	if s.octavia {
		l.OctaviaURL = url(2)
	}
	return l
}
