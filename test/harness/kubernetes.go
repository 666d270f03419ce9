package harness

import (
	"bufio"
	"context"
	"fmt"
	"strings"
)

// Kubernetes is a running control plane.
type Kubernetes struct {
	Server     string // its URL
	Kubeconfig string // the file of its administrator
	// Process runs all of it.
	Process *Process
}

// StartKubernetes starts a control plane in a place, by the program kubelab with these
// arguments, and returns when it is ready. Failed must end ctx.
func (c *Processes) StartKubernetes(ctx context.Context, in Place, kubelab string, args ...string) (k Kubernetes, err error) {
	p, err := c.Command("kubelab", kubelab, append([]string{"up"}, args...)...)
	if err != nil {
		return k, err
	}
	p.Cmd.Stdout = nil
	stdout, err := p.Cmd.StdoutPipe()
	if err != nil {
		return k, fmt.Errorf("start kubelab: %w", err)
	}
	if err := c.Start(in, p); err != nil {
		return k, err
	}
	k.Process = p
	// kubelab prints one line when it is ready.
	lines := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(stdout).ReadString('\n')
		lines <- line
	}()
	select {
	case <-ctx.Done():
		return k, context.Cause(ctx)
	case line := <-lines:
		for field := range strings.FieldsSeq(line) {
			switch name, value, _ := strings.Cut(field, "="); name {
			case "server":
				k.Server = value
			case "kubeconfig":
				k.Kubeconfig = value
			}
		}
	}
	if k.Server == "" || k.Kubeconfig == "" {
		<-ctx.Done() // kubelab has ended, and Failed has the reason
		return k, context.Cause(ctx)
	}
	return k, nil
}
