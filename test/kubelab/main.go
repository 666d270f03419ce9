// Command kubelab is a temporary Kubernetes control plane in one process: the real etcd,
// kube-apiserver, kube-scheduler and kube-controller-manager, as goroutines. It serves
// Fairlead's demo and integration tests, and is not for real clusters. No data is kept:
// etcd does not sync to disk (unless --fsync is set) and the directory is removed at the
// end.
//
//	kubelab up --dir DIR [--nodes N] [--bind ADDR] [--owner-pid PID] [--fsync] [--idle] [--node-lifecycle]
//	           [--controller-accounts] [--resume]
//	kubelab down --dir DIR
//	kubelab kubectl ...
//	kubelab kubelet ...
//	kubelab kube-proxy ...
//
// The control plane has no kubelets. The Node objects of --nodes, and those that tests
// create, are only objects without heartbeats. The node-lifecycle controller would taint
// them as unreachable after its grace period, so it is off unless --node-lifecycle is
// set. Nodes with a real kubelet need it: it removes the not-ready taint that every new
// Node has. Such a kubelet registers its Node itself, so --nodes makes only credentials
// then.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

const usage = `usage:
  kubelab up --dir DIR [--nodes N] [--bind ADDR] [--owner-pid PID] [--fsync] [--idle] [--node-lifecycle]
             [--controller-accounts] [--resume]
  kubelab down --dir DIR
  kubelab kubectl --kubeconfig DIR/kubeconfig ...
  kubelab kubelet ...
  kubelab kube-proxy ...

up runs a control plane in the foreground until it gets SIGINT or SIGTERM, and prints one line when it is ready.
  --dir DIR          data directory: new, empty, or left by an earlier kubelab; removed at the end if kubelab made it
  --nodes N          make the Node objects node-1 to node-N, schedulable, and a kubeconfig for each in DIR
  --bind ADDR        address of the API server, one of this machine's; the port is a free one (default 127.0.0.1);
                     with an IPv6 address Services have IPv6 addresses alone
  --owner-pid PID    end when the process with this ID ends
  --fsync            make etcd sync every write to disk, to measure with
  --idle             serve the unix socket DIR/idle.sock,   to measure with: whoever connects has garbage collected and
                     room made on the heap, and the connection is closed when that is done
  --node-lifecycle   run the node-lifecycle controller, for nodes with a real kubelet, which sends heartbeats and makes
                     its Node object; --nodes makes the kubeconfigs alone, and one for kube-proxy
  --controller-accounts
                     give each controller of kube-controller-manager a service account, as clusters do: without it API
                     priority and fairness exempts them, and the start is faster
  --resume           kill the kubelab of DIR, if one runs, and go on with its state, address and credentials: what a
                     crash and a restart of the control plane are to its clients; --nodes and --bind stay as they were

down ends the kubelab of a directory, if one runs, and removes the directory.

kubectl, kubelet and kube-proxy are Kubernetes' own.
`

// errUsage marks a wrong command line.
var errUsage = errors.New("wrong command line")

// stdio is the user's output. The components' output goes elsewhere, see redirectOutput.
type stdio struct {
	stdout, stderr *os.File
}

func main() {
	out, err := saveStdio()
	if err != nil {
		_, _ = fmt.Fprintf(os.Stderr, "kubelab: %v\n", err)
		os.Exit(1)
	}
	os.Exit(run(context.Background(), os.Args[1:], out))
}

// run is the whole program: it executes one command and returns the exit code, 0 for success, 1 for a failure and 2 for
// a wrong command line.
func run(ctx context.Context, args []string, out stdio) int {
	err := dispatch(ctx, args, out)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, flag.ErrHelp):
		_, _ = fmt.Fprint(out.stdout, usage)
		return 0
	case errors.Is(err, errUsage):
		_, _ = fmt.Fprintf(out.stderr, "kubelab: %v\n%s", err, usage)
		return 2
	default:
		_, _ = fmt.Fprintf(out.stderr, "kubelab: %v\n", err)
		return 1
	}
}

func dispatch(ctx context.Context, args []string, out stdio) error {
	if len(args) == 0 {
		return fmt.Errorf("%w: no command given", errUsage)
	}
	switch args[0] {
	case "up":
		opts, err := parseUp(args[1:])
		if err != nil {
			return err
		}
		return up(ctx, opts, out)
	case "down":
		dir, err := parseDown(args[1:])
		if err != nil {
			return err
		}
		return down(ctx, dir)
	case "kubectl":
		runKubectl(args[1:])
		return nil
	case "kubelet":
		runKubelet(args[1:])
		return nil
	case "kube-proxy":
		runKubeProxy(args[1:])
		return nil
	case "help", "-h", "--help":
		return flag.ErrHelp
	default:
		return fmt.Errorf("%w: unknown command %q", errUsage, args[0])
	}
}

// newFlags returns an empty flag set. It prints nothing itself; run prints its errors.
func newFlags(command string) *flag.FlagSet {
	flags := flag.NewFlagSet(command, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	return flags
}

// parseError marks an error of a flag set as one of the command line, unless help was asked for.
func parseError(err error) error {
	if errors.Is(err, flag.ErrHelp) {
		return err
	}
	return fmt.Errorf("%w: %w", errUsage, err)
}
