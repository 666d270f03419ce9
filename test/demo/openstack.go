package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"fairlead.dev/fairlead/test/cloudtest"
	"fairlead.dev/fairlead/test/standin"
)

// neutronSocket is the name of the socket where the stand-in of Neutron obeys the user.
const neutronSocket = "neutron.sock"

// startOpenStack starts the stand-ins: a Neutron on the switch, and an Open vSwitch on each
// node. A port is ACTIVE while a node has it in its Open vSwitch.
func (w *testbed) startOpenStack(ctx context.Context) error {
	cloud, err := standin.NewCloud(w.Net.Switch.V4.Addr().String()+":0", w.Net.Switch.Listen)
	if err == nil {
		err = cloud.Start(ctx)
	}
	if err == nil {
		err = cloud.WriteFile(w.cloudsFile(), cloud.URL())
	}
	if err != nil {
		return err
	}
	commands := &http.Server{Handler: cloud.Commands(), ReadHeaderTimeout: time.Minute}
	if err := w.serve(ctx, w.neutronSocket(), commands.Serve); err != nil {
		return err
	}
	plugged := func(port string, is bool) {
		if is {
			cloud.Plug(port)
		} else {
			cloud.Unplug(port)
		}
	}
	for _, node := range w.nodes {
		ovs := &standin.Switch{Plugged: plugged}
		if err := w.serve(ctx, node.ovsdbSocket(), ovs.Serve); err != nil {
			return err
		}
	}
	w.Say("stand-ins run: a Neutron in memory at %s, and an Open vSwitch without packets on each node", cloud.URL())
	return nil
}

// serve serves a unix socket until the program ends.
func (w *testbed) serve(ctx context.Context, socket string, serve func(net.Listener) error) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("serve a stand-in: %w", err)
	}
	go func() {
		if err := serve(listener); ctx.Err() == nil {
			w.Programs.Failed(err)
		}
	}()
	return nil
}

func (w *testbed) cloudsFile() string { return w.Path("clouds.yaml") }

// openStack is the part openstack of the controller's configuration.
func (w *testbed) openStack() map[string]any {
	return map[string]any{
		"cluster": "demo", "cloudsFile": w.cloudsFile(), "cloud": cloudtest.Admin,
		"ports": map[string]any{
			"network": standin.Network, "securityGroups": []string{standin.SecurityGroup},
			"pools": map[string]any{"low": 2, "high": 8, "batch": 8},
		},
	}
}

var neutronCommands = []string{"ports", "calls", "stop", "start"}

// neutron gives the stand-in of Neutron a command, prints the answer, and returns the exit
// code.
func (s settings) neutron(args []string, stdout, stderr io.Writer) int {
	if len(args) != 1 || !slices.Contains(neutronCommands, args[0]) {
		_, _ = fmt.Fprintf(stderr, "neutron: %q: must be one of: %s\n", args, strings.Join(neutronCommands, ", "))
		return 2
	}
	answer, err := s.askNeutron(args[0])
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "neutron: %v\n", err)
		return 1
	}
	_, _ = io.WriteString(stdout, answer)
	return 0
}

func (s settings) askNeutron(command string) (string, error) {
	k, err := s.place().running()
	if err != nil {
		return "", err
	}
	if k == nil {
		return "", errors.New("no cluster of this checkout runs: make up DEMO=openstack starts one")
	}
	answer, err := standin.Ask(context.Background(), k.Work.Path(neutronSocket), command)
	if errors.Is(err, fs.ErrNotExist) {
		err = errors.New("the cluster has no stand-in of Neutron: make down, then make up DEMO=openstack")
	}
	return answer, err
}
