// Command podrunner does the work of kubelet and containerd around CNI, on nodes that
// have neither. It serves the demo, the benchmarks and the end-to-end tests. It runs no
// containers.
//
// It keeps a Node and its Lease up to date and watches the pods that the scheduler put
// there. For each pod it makes a network namespace, executes the CNI plugin as containerd
// does, and reports the pod as running with the addresses of the result. When the pod is
// deleted it sends the two DELs that containerd sends, and then deletes the pod for good,
// which is kubelet's last step. README.md lists the differences from the real programs.
//
// It must run as root in the network namespace of its node.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"fairlead.dev/fairlead/internal/run"
	"fairlead.dev/fairlead/test/podrunner/sandbox"
)

func main() {
	ctx, stop := run.SignalContext()
	defer stop()
	opts, err := parseFlags(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		err = podRunner(ctx, opts, os.Stderr)
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "podrunner:", err)
		os.Exit(1)
	}
}

type options struct {
	kubeconfig string
	node       string
	cniBinDir  string
	cniConfDir string
	netnsDir   string
	stateDir   string
	labels     map[string]string
	taints     []corev1.Taint
	maxPods    int64
	backoff    time.Duration
	logLevel   int
}

func parseFlags(args []string, stderr io.Writer) (options, error) {
	var opts options
	var labels, taints string
	flags := flag.NewFlagSet("podrunner", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&opts.kubeconfig, "kubeconfig", "", "kubeconfig `file` of the node")
	flags.StringVar(&opts.node, "node", "", "`name` of the Node; it is made if there is none")
	flags.StringVar(&opts.cniBinDir, "cni-bin-dir", "/opt/cni/bin", "`directory` of CNI plugins")
	flags.StringVar(&opts.cniConfDir, "cni-conf-dir", "/etc/cni/net.d", "`directory` of network configurations")
	flags.StringVar(&opts.netnsDir, "netns-dir", "/run/netns", "`directory` to mount network namespaces in")
	flags.StringVar(&opts.stateDir, "state-dir", "", "`directory` of sandbox records; best on tmpfs")
	flags.StringVar(&labels, "node-labels", "", "labels of a Node that is made, `key=value,...`")
	flags.StringVar(&taints, "register-with-taints", "", "taints of a Node that is made, `key=value:Effect,...`")
	flags.Int64Var(&opts.maxPods, "max-pods", 250, "how many pods the node takes")
	flags.DurationVar(&opts.backoff, "backoff", 10*time.Second, "how long a pod waits after a failed sandbox, and half as long again at most")
	flags.IntVar(&opts.logLevel, "v", run.LevelOperator, "log level, 0 to 2")
	if err := flags.Parse(args); err != nil {
		return opts, err
	}
	var errs []error
	for name, value := range map[string]string{"kubeconfig": opts.kubeconfig, "node": opts.node, "state-dir": opts.stateDir} {
		if value == "" {
			errs = append(errs, fmt.Errorf("--%s is missing", name))
		}
	}
	if flags.NArg() > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
	var err error
	if opts.labels, err = parseLabels(labels); err != nil {
		errs = append(errs, fmt.Errorf("--node-labels: %w", err))
	}
	if opts.taints, err = parseTaints(taints); err != nil {
		errs = append(errs, fmt.Errorf("--register-with-taints: %w", err))
	}
	return opts, errors.Join(errs...)
}

// podRunner runs until ctx ends.
func podRunner(ctx context.Context, opts options, stderr io.Writer) error {
	logging := run.Logging{Level: opts.logLevel}
	ctx, err := logging.Start(ctx, stderr, "podrunner")
	if err != nil {
		return err
	}
	config, err := run.KubeConfig(opts.kubeconfig, "podrunner")
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("connect to Kubernetes: %w", err)
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	events := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "podrunner", Host: opts.node})

	program, err := assemble(opts, client, events)
	if err != nil {
		return err
	}
	return program.run(ctx)
}

// program has all parts of the running program.
type program struct {
	conf   *conf
	node   *node
	runner *runner
}

func assemble(opts options, client kubernetes.Interface, events record.EventRecorder) (*program, error) {
	ips, err := nodeAddresses()
	if err != nil {
		return nil, err
	}
	store, err := sandbox.Open(opts.stateDir)
	if err != nil {
		return nil, err
	}
	resolvConf, err := os.ReadFile("/etc/resolv.conf")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read the node's DNS settings: %w", err)
	}
	bootID := firstLine("/proc/sys/kernel/random/boot_id")
	conf := &conf{dir: opts.cniConfDir, err: errNotInitialized}
	network := &network{conf: conf, binDir: opts.cniBinDir, cacheDir: filepath.Join(opts.stateDir, "cni"), store: store}
	node := &node{
		name: opts.node, labels: opts.labels, taints: opts.taints, ips: ips, maxPods: opts.maxPods,
		bootID: bootID, client: client, status: network.status, networkErr: errNotInitialized,
	}
	return &program{conf: conf, node: node, runner: &runner{
		node: opts.node, client: client, network: network, store: store, events: events,
		networkReady: node.networkReady,
		nodeIPs:      ips,
		dns:          parseResolvConf(string(resolvConf)),
		netnsDir:     opts.netnsDir,
		bootID:       bootID,
		backoff:      opts.backoff,
	}}, nil
}

func (p *program) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.conf.watch(ctx) })
	group.Go(func() error { return p.node.run(ctx) })
	group.Go(func() error { return p.runner.run(ctx) })
	return group.Wait()
}
