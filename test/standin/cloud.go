// Package standin has stand-ins for what nodes on OpenStack have and a machine without it
// lacks: Keystone and Neutron, which are cloudtest's, and the database of Open vSwitch. Real
// programs use them over their real protocols. No packet passes.
package standin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"fairlead.dev/fairlead/test/cloudtest"
	"fairlead.dev/fairlead/test/harness"
)

// The entries of a Cloud.
const (
	// Network is the name of its network.
	Network = "pods"
	// SecurityGroup is the name of its security group.
	SecurityGroup = "pods"
	// Prefix is the subnet of Network.
	Prefix = "10.70.0.0/16"
)

// Cloud is a Neutron with one network, which goes away and comes back.
type Cloud struct {
	*cloudtest.Server
	listen func(ctx context.Context, address string) (net.Listener, error)

	mu      sync.Mutex
	address string
	server  *http.Server // nil while it is away
}

// NewCloud returns a cloud that is away, and is then served at an address, as "192.168.77.1:0".
func NewCloud(address string, listen func(ctx context.Context, address string) (net.Listener, error)) (*Cloud, error) {
	c := &Cloud{Server: cloudtest.NewServer(), listen: listen, address: address}
	network, err := c.Create("networks", cloudtest.AdminProject, cloudtest.Object{"name": Network})
	if err != nil {
		return nil, err
	}
	_, err = c.Create("subnets", cloudtest.AdminProject, cloudtest.Object{
		"name": Network, "network_id": network, "cidr": Prefix, "ip_version": 4.0, "enable_dhcp": false,
	})
	if err != nil {
		return nil, err
	}
	_, err = c.Create("security-groups", cloudtest.AdminProject, cloudtest.Object{"name": SecurityGroup})
	return c, err
}

// URL returns where it is, or was last, served.
func (c *Cloud) URL() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return "http://" + c.address
}

// Start serves it, each time at the same address. It does nothing if it is served.
func (c *Cloud) Start(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server != nil {
		return nil
	}
	listener, err := c.listen(ctx, c.address)
	if err != nil {
		return fmt.Errorf("serve the stand-in of Neutron: %w", err)
	}
	server := &http.Server{Handler: c.Server, ReadHeaderTimeout: time.Minute}
	c.server, c.address = server, listener.Addr().String()
	go func() { _ = server.Serve(listener) }() // until Stop, which closes the listener
	return nil
}

// Stop ends all connections and refuses new ones. Its objects stay.
func (c *Cloud) Stop() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server == nil {
		return nil
	}
	err := c.server.Close()
	c.server = nil
	return err
}

// Commands serves the commands of a person: GET /ports and /calls, POST /start
// and /stop. The answers are text.
func (c *Cloud) Commands() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ports", func(w http.ResponseWriter, _ *http.Request) { say(w, c.ports(), nil) })
	mux.HandleFunc("GET /calls", func(w http.ResponseWriter, _ *http.Request) { say(w, c.calls(), nil) })
	mux.HandleFunc("POST /start", func(w http.ResponseWriter, r *http.Request) {
		say(w, "Neutron is back\n", c.Start(context.WithoutCancel(r.Context())))
	})
	mux.HandleFunc("POST /stop", func(w http.ResponseWriter, _ *http.Request) { say(w, "Neutron is away\n", c.Stop()) })
	return mux
}

func say(w http.ResponseWriter, text string, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = w.Write([]byte(text)) // who asked may be gone
}

// ports returns a table of all ports.
func (c *Cloud) ports() string {
	ports := c.Objects("ports")
	if len(ports) == 0 {
		return "no ports\n"
	}
	groups := map[any]any{}
	for _, g := range c.Objects("security-groups") {
		groups[g["id"]] = g["name"]
	}
	var out strings.Builder
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "NAME\tADDRESS\tMAC\tHOST\tSTATUS\tGROUPS\tTAGS") // a Builder takes all
	for _, p := range ports {
		var addresses, names []any
		for _, a := range p["fixed_ips"].([]any) {
			addresses = append(addresses, a.(map[string]any)["ip_address"])
		}
		for _, g := range p["security_groups"].([]any) {
			names = append(names, groups[g])
		}
		_, _ = fmt.Fprintf(table, "%v\t%s\t%v\t%v\t%v\t%s\t%s\n", p["name"], list(addresses), p["mac_address"], p["binding:host_id"], p["status"], list(names), list(p["tags"].([]any)))
	}
	_ = table.Flush()
	return out.String()
}

func list(elements []any) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(elements), " ", ","), "[]")
}

// calls returns the calls since it was last asked, and their sum.
func (c *Cloud) calls() string {
	var out strings.Builder
	sum, calls := 0, c.Calls()
	c.ResetCalls()
	for _, call := range slices.Sorted(maps.Keys(calls)) {
		sum += calls[call]
		_, _ = fmt.Fprintf(&out, "%s: %d\n", call, calls[call])
	}
	_, _ = fmt.Fprintf(&out, "calls of Neutron: %d\n", sum)
	return out.String()
}

// Ask gives a command to the Commands that are served at a socket: ports, calls, start or
// stop. It returns the answer.
func Ask(ctx context.Context, socket, command string) (string, error) {
	method := http.MethodGet
	if command == "start" || command == "stop" {
		method = http.MethodPost
	}
	client := harness.AtSocket(socket)
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, method, "http://neutron/"+command, nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		return "", errors.New(strings.TrimSpace(string(text)))
	}
	return string(text), err
}
