// Command controller is kube-network-policies for the test of package policies: the
// project's controller and data path, on objects from a file in place of an API server.
//
//	controller --node NAME --objects FILE
//
// It runs in the network namespace of its node until SIGTERM, and prints "ready" and its
// version when its rules are in place.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/google/nftables"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
)

// queue is the number of the queue between the kernel and the controller.
const queue = 102

const table = "kube-network-policies"

// version is that of kube-network-policies; the build sets it.
var version = "unknown"

func main() {
	node := flag.String("node", "", "`name` of the node")
	file := flag.String("objects", "", "`file` with one object in JSON on each line")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	err := run(ctx, *node, *file)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "controller:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, node, file string) error {
	objects, err := read(file)
	if err != nil {
		return err
	}
	api := fake.NewClientset(objects...)
	factory := informers.NewSharedInformerFactory(api, 0)
	c, err := networkpolicy.NewController(api, factory.Networking().V1().NetworkPolicies(), factory.Core().V1().Namespaces(), factory.Core().V1().Pods(),
		nil, nil, nil, nil, networkpolicy.Config{NodeName: node, QueueID: queue, NFTableName: table, NRIdisabled: true})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	factory.Start(ctx.Done())
	if err := enforced(ctx, ended); err != nil {
		return err
	}
	fmt.Println("ready", version)
	return <-ended
}

// read returns the objects in a file.
func read(file string) ([]runtime.Object, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []runtime.Object
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		o, _, err := scheme.Codecs.UniversalDeserializer().Decode(lines.Bytes(), nil, nil)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		out = append(out, o)
	}
	return out, lines.Err()
}

// enforced returns when the controller's table and its queue exist: the controller does not
// say so itself.
func enforced(ctx context.Context, ended <-chan error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			return errors.Join(errors.New("ended before its rules were in place"), err)
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		kernel, err := nftables.New()
		if err != nil {
			return err
		}
		chains, err := kernel.ListChainsOfTableFamily(nftables.TableFamilyINet)
		if err != nil {
			return fmt.Errorf("list chains: %w", err)
		}
		queues, _ := os.ReadFile("/proc/thread-self/net/netfilter/nfnetlink_queue")
		for _, chain := range chains {
			if chain.Table.Name == table && len(queues) > 0 {
				return nil
			}
		}
	}
}
