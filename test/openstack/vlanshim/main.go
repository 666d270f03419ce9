// Command vlanshim stands in for VLAN devices where the kernel has none (8021q). It runs in
// the network namespace of a machine whose port is the parent of a trunk:
//
//	vlanshim eth0 child1=101 child2=102
//
// A child is a link of the machine, such as one end of a veth pair whose other end is in a
// pod. Frames of the pod leave eth0 with the child's 802.1Q tag, and frames with that tag
// reach the pod without it. The program prints "ready", and works until it is ended. It
// needs Linux 6.6 and root. It makes no VLAN device: programs that make one with netlink
// need a kernel with 8021q.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "vlanshim:", err)
		os.Exit(1)
	}
}

// run ties the children to the parent until the context ends.
func run(ctx context.Context, args []string, stdout io.Writer) error {
	parent, children, err := parse(args)
	if err != nil {
		return err
	}
	s, err := newShim(parent, children)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintln(stdout, "ready")
	<-ctx.Done()
	return s.Close()
}

// child is a link whose frames have a VLAN ID on the parent.
type child struct {
	link string
	vlan int
}

// parse reads the arguments. Errors name the argument.
func parse(args []string) (parent string, children []child, err error) {
	if len(args) < 2 {
		return "", nil, fmt.Errorf("%d arguments; want a parent and at least one child: vlanshim PARENT CHILD=VLAN", len(args))
	}
	taken := map[int]string{}
	for _, arg := range args[1:] {
		link, id, _ := strings.Cut(arg, "=")
		vlan, err := strconv.Atoi(id)
		if err != nil || link == "" || vlan < 1 || vlan > 4094 {
			return "", nil, fmt.Errorf("child %q; must be LINK=VLAN with a VLAN from 1 to 4094", arg)
		}
		if other, ok := taken[vlan]; ok {
			return "", nil, fmt.Errorf("child %q; VLAN %d is that of %s already", arg, vlan, other)
		}
		taken[vlan] = link
		children = append(children, child{link: link, vlan: vlan})
	}
	return args[0], children, nil
}
