package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// readyTimeout bounds the start: it takes 2.5 s on an idle machine with two cores.
const readyTimeout = 2 * time.Minute

// heapGrowth is how much, in percent, the heap may grow until garbage is collected,
// unless GOGC is set or there are more than fewNodes, with which the heap is large. The
// tested and measured programs share the processors with the control plane, which works a
// fifth less this way, and memory is cheaper.
const heapGrowth, fewNodes = 300, 100

// defaultBind is the address of the API server unless --bind is given.
const defaultBind = "127.0.0.1"

// upOptions are the settings of `kubelab up`.
type upOptions struct {
	dir           string     // data directory: new, empty, or left by a kubelab that ended
	nodes         int        // number of node kubeconfigs and, without nodeLifecycle, of stand-in Node objects
	bind          netip.Addr // address of the API server, one of this machine's
	ownerPID      int        // end when this process ends; 0 means none
	fsync         bool       // make etcd sync to disk
	idle          bool       // serve the socket of makeIdle
	nodeLifecycle bool       // run the node-lifecycle controller
	accounts      bool       // a service account for each controller of kube-controller-manager
	resume        bool       // kill the kubelab of dir and continue with its state
}

func parseUp(args []string) (upOptions, error) {
	var opts upOptions
	flags := newFlags("kubelab up")
	flags.StringVar(&opts.dir, "dir", "", "")
	flags.IntVar(&opts.nodes, "nodes", 0, "")
	bind := flags.String("bind", defaultBind, "")
	flags.IntVar(&opts.ownerPID, "owner-pid", 0, "")
	flags.BoolVar(&opts.fsync, "fsync", false, "")
	flags.BoolVar(&opts.idle, "idle", false, "")
	flags.BoolVar(&opts.nodeLifecycle, "node-lifecycle", false, "")
	flags.BoolVar(&opts.accounts, "controller-accounts", false, "")
	flags.BoolVar(&opts.resume, "resume", false, "")
	if err := flags.Parse(args); err != nil {
		return opts, parseError(err)
	}
	if flags.NArg() > 0 {
		return opts, fmt.Errorf("%w: unexpected argument %q", errUsage, flags.Arg(0))
	}
	if opts.dir == "" {
		return opts, fmt.Errorf("%w: --dir is missing", errUsage)
	}
	if opts.nodes < 0 || opts.nodes > 1000 {
		return opts, fmt.Errorf("%w: --nodes is %d; want 0 to 1000", errUsage, opts.nodes)
	}
	if opts.ownerPID < 0 {
		return opts, fmt.Errorf("%w: --owner-pid is %d; want a process ID", errUsage, opts.ownerPID)
	}
	if opts.resume && (opts.nodes != 0 || *bind != defaultBind) {
		return opts, fmt.Errorf("%w: --resume keeps the nodes and the address; leave --nodes and --bind out", errUsage)
	}
	addr, err := netip.ParseAddr(*bind)
	if err != nil || addr.IsUnspecified() {
		return opts, fmt.Errorf("%w: --bind is %q; want one IP address of this machine", errUsage, *bind)
	}
	opts.bind = addr
	return opts, nil
}

// up runs a control plane until a signal, the end of its owner, or a failure of a component.
func up(ctx context.Context, opts upOptions, out stdio) (err error) {
	if os.Getenv("GOGC") == "" && opts.nodes <= fewNodes {
		debug.SetGCPercent(heapGrowth)
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	if opts.ownerPID != 0 {
		owner, err := watchProcess(opts.ownerPID)
		if err != nil {
			return fmt.Errorf("--owner-pid: %w", err)
		}
		go func() { cancel(owner.wait()) }()
	}

	claim := claimDir
	if opts.resume {
		claim = resumeDir
	}
	dir, err := claim(opts.dir)
	if err != nil {
		return err
	}
	logPath := dir.file("kubelab.log")
	if err := redirectOutput(logPath, out.stderr); err != nil {
		return errors.Join(err, dir.remove())
	}
	plane := &controlPlane{opts: opts, dir: dir, failed: make(chan error, 1)}
	defer func() {
		plane.stop()
		if err != nil {
			err = fmt.Errorf("%w\nlog: %s", err, logPath) // the log and the directory stay
			return
		}
		err = dir.remove()
	}()
	if err := plane.start(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // asked to end before it was ready
		}
		return err
	}
	if opts.idle {
		l, err := net.Listen("unix", dir.file(idleSocket))
		if err != nil {
			return fmt.Errorf("--idle: %w", err)
		}
		go serveIdle(l)
	}
	// Standard output gets only this line; closing it shows the reader its end.
	_, printErr := fmt.Fprintf(out.stdout, "kubelab: ready server=%s kubeconfig=%s\n", plane.server, plane.adminConfig())
	if err := errors.Join(printErr, out.stdout.Close()); err != nil {
		return fmt.Errorf("standard output: %w", err)
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-plane.failed:
		return err
	}
}

// controlPlane is the control plane that `up` runs.
type controlPlane struct {
	opts   upOptions
	dir    *dataDir
	server string // URL of the API server
	etcd   *etcdServer
	failed chan error // the error of the first component that ended
}

// adminConfig returns the path of the kubeconfig of a cluster administrator.
func (p *controlPlane) adminConfig() string { return p.dir.file("kubeconfig") }

// start starts everything and returns when the API server is ready, the controllers work
// and the nodes exist.
func (p *controlPlane) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, fmt.Errorf("not ready within %v", readyTimeout))
	defer cancel()

	listener, err := p.listen()
	if err != nil {
		return err
	}
	if p.etcd, err = startEtcd(ctx, p.dir.file("etcd"), p.opts.fsync); err != nil {
		return err
	}

	// The components outlive start; only the end of the process stops them, see stop.
	components := context.WithoutCancel(ctx)
	p.run("kube-apiserver", func() error { return runAPIServer(components, p, listener) })
	admin, err := p.adminClient()
	if err != nil {
		return err
	}
	if err := p.await(ctx, "API server", admin.ready); err != nil {
		return err
	}
	p.run("kube-controller-manager", func() error { return runControllerManager(components, p) })
	p.run("kube-scheduler", func() error { return runScheduler(components, p) })
	if !p.opts.nodeLifecycle {
		if err := admin.makeNodes(ctx, p.opts.nodes); err != nil {
			return err
		}
	}
	return p.await(ctx, "controllers", admin.controllersWork)
}

// listen opens the API server's port, and writes the credentials for its address. A
// resumed control plane has its former address and credentials.
func (p *controlPlane) listen() (net.Listener, error) {
	if p.opts.resume {
		former, err := formerAddress(p.adminConfig())
		if err != nil {
			return nil, fmt.Errorf("--resume: %w", err)
		}
		p.opts.bind, p.server = former.Addr(), "https://"+former.String()
		listener, err := net.Listen("tcp", former.String())
		if err != nil {
			return nil, fmt.Errorf("--resume: %w", err)
		}
		return listener, nil
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(p.opts.bind.String(), "0"))
	if err != nil {
		return nil, fmt.Errorf("--bind: %w", err)
	}
	p.server = "https://" + listener.Addr().String()
	return listener, p.writeCredentials()
}

// formerAddress returns the API server's address in a kubeconfig of kubelab.
func formerAddress(kubeconfig string) (netip.AddrPort, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	return netip.ParseAddrPort(strings.TrimPrefix(cfg.Host, "https://"))
}

// run executes a component in the background. A component that ends, for whatever reason, ends the control plane.
func (p *controlPlane) run(name string, component func() error) {
	go func() {
		err := component()
		if err == nil {
			err = errors.New("ended")
		}
		select {
		case p.failed <- fmt.Errorf("%s: %w", name, err):
		default: // only the first failure counts; the others follow from it
		}
	}()
}

// stop ends the programs that write to the data directory. The components are not asked
// to stop: an orderly end takes more than 5 s, because each waits for the clients of the
// next, and it would save no data that is kept.
func (p *controlPlane) stop() {
	if p.etcd != nil {
		p.etcd.stop()
	}
}

// writeCredentials writes the certificates the components read, the administrator's kubeconfig and the nodes'.
func (p *controlPlane) writeCredentials() error {
	pki, err := newPKI()
	if err != nil {
		return err
	}
	if err := pki.writeServerFiles(p.dir.path, p.opts.bind); err != nil {
		return err
	}
	users := map[string]identity{
		p.adminConfig():                    {name: "kubelab-admin", group: "system:masters"},
		p.dir.file("scheduler.kubeconfig"): {name: "system:kube-scheduler"},
		// One identity for all controllers needs the rights of all of them. The
		// alternative, a service account for each, is used in real clusters but makes the
		// start slower: --controller-accounts.
		p.dir.file("controller-manager.kubeconfig"): {name: "system:kube-controller-manager", group: "system:masters"},
	}
	if p.opts.accounts {
		users[p.dir.file("controller-manager.kubeconfig")] = identity{name: "system:kube-controller-manager"}
	}
	for i := range p.opts.nodes {
		name := nodeName(i)
		users[p.dir.file(name+".kubeconfig")] = identity{name: "system:node:" + name, group: "system:nodes"}
	}
	if p.opts.nodeLifecycle {
		users[p.dir.file("kube-proxy.kubeconfig")] = identity{name: "system:kube-proxy"}
	}
	for path, user := range users {
		if err := pki.writeKubeconfig(path, p.server, user); err != nil {
			return fmt.Errorf("writing %s: %w", filepath.Base(path), err)
		}
	}
	return nil
}
