package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Chassis is a network namespace with an Open vSwitch, whose bridge br-int OVN programs.
type Chassis struct {
	// Name is its host name, the binding:host_id of ports.
	Name string
	// Namespace is the name of its network namespace below /run/netns.
	Namespace string
	// OVSDB is the remote of Open vSwitch's database, as unix:/path.
	OVSDB string
	// Tunnel is its address in the network that joins the chassis.
	Tunnel netip.Addr

	lab *Lab
}

// agentTimeout is how long Neutron may take to see a chassis. Neutron asks for signs of life
// every 37 seconds (agent_down_time // 2), and takes a chassis that came after the first two
// questions for dead until the next one.
const agentTimeout = 90 * time.Second

var chassisName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,14}$`)

// Chassis makes a chassis, or returns the one of this name; n, from 1 to 254, is the last
// byte of its tunnel address and must be its own. It returns when Neutron can bind ports to
// the chassis.
func (l *Lab) Chassis(ctx context.Context, name string, n int) (*Chassis, error) {
	if !chassisName.MatchString(name) {
		return nil, fmt.Errorf("chassis %q; its name must match %v", name, chassisName)
	}
	if n < 1 || n > 254 {
		return nil, fmt.Errorf("chassis %s with number %d; must be 1 to 254", name, n)
	}
	if err := l.script(ctx, nil, "chassis.sh", name, strconv.Itoa(n)); err != nil {
		return nil, fmt.Errorf("make chassis %s: %w", name, err)
	}
	c := &Chassis{
		Name: name, Namespace: l.Namespace + "-" + name,
		OVSDB:  "unix:" + l.path("run", name, "db.sock"),
		Tunnel: netip.AddrFrom4([4]byte{172, 31, 255, byte(n)}),
		lab:    l,
	}
	if err := c.await(ctx); err != nil {
		return nil, fmt.Errorf("make chassis %s: %w", name, err)
	}
	return c, nil
}

// await returns when Neutron sees the chassis as an agent that is alive.
func (c *Chassis) await(ctx context.Context) error {
	neutron, err := c.lab.Network(ctx, Admin)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, agentTimeout, errors.New("no agent of this host is alive in Neutron"))
	defer cancel()
	next := time.NewTicker(50 * time.Millisecond)
	defer next.Stop()
	list := neutron.ServiceURL("agents") + "?host=" + c.Name
	for {
		// The client's own type of agents cannot read the times that OVN's agents have.
		var found struct {
			Agents []struct {
				Alive bool `json:"alive"`
			} `json:"agents"`
		}
		if _, err := neutron.Get(ctx, list, &found, nil); err != nil {
			return fmt.Errorf("list the agents of Neutron: %w", errors.Join(err, context.Cause(ctx)))
		}
		if len(found.Agents) == 1 && found.Agents[0].Alive {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-next.C:
		}
	}
}

// VSCtl runs ovs-vsctl on the database of the chassis and returns its output without the
// last line break.
func (c *Chassis) VSCtl(ctx context.Context, args ...string) (string, error) {
	return c.lab.Run(ctx, "ovs-vsctl", append([]string{"--timeout=30", "--db=" + c.OVSDB}, args...)...)
}

// Down ends the chassis. Its namespace goes with all links that are in it.
func (c *Chassis) Down(ctx context.Context) error {
	if err := c.lab.script(ctx, nil, "down.sh", c.Name); err != nil {
		return fmt.Errorf("end chassis %s: %w", c.Name, err)
	}
	return nil
}

// Run runs a program of the laboratory's release, for example ovn-sbctl, and returns its
// output without the last line break.
func (l *Lab) Run(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, l.path("scripts", "exec.sh"), append([]string{l.State, program}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}
