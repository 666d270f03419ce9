// Package check has the command that tests the network of a cluster: it makes pods on the
// nodes, has them ask each other, and explains the failures. Planning and explaining are
// pure functions; run talks to the cluster.
package check

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/spf13/cobra"

	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/cli/output"
	"fairlead.dev/fairlead/internal/config"
)

// maxNodes is how many nodes are tested unless the user names another number: the number of
// probes grows with its square.
const maxNodes = 20

// Command returns the command `check`.
func Command(c *kube.Connection) *cobra.Command {
	var (
		out           output.Format
		system, junit string
		asked         []string
		s             settings
	)
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Test the network of the cluster, by pods that ask each other",
		Long: "Test the network of the cluster, by pods that ask each other.\n\n" +
			"The command makes two namespaces and four pods on each node, of the image of\n" +
			"Fairlead's daemon, and removes them at the end. Pods of each two nodes ask each other by\n" +
			"TCP, by UDP and with packets of the MTU, in each family, and by Services and ports of the\n" +
			"nodes. No pod may send with the address of another. Each failure is explained. Above 20\n" +
			"nodes a sample is tested. The exit code is 0 if all tests passed, 1 if one failed and 2\n" +
			"if the tests could not be made.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if s.networks, err = s.parse(asked); err != nil {
				return err
			}
			session, err := c.Session()
			if err != nil {
				return err
			}
			r := &checking{api: session, cluster: session, settings: s, system: system, say: func(format string, args ...any) {
				cmd.PrintErrln(output.OneLine(fmt.Sprintf(format, args...)))
			}}
			v, err := r.run(cmd.Context())
			if err != nil {
				return err
			}
			if junit != "" {
				if err := writeFile(junit, v); err != nil {
					return err
				}
			}
			if err := out.Write(cmd.OutOrStdout(), v, func() string { return text(v) }); err != nil {
				return err
			}
			if !v.OK {
				return output.ErrAttention
			}
			return nil
		},
	}
	out.AddFlag(cmd)
	flags := cmd.Flags()
	flags.StringVar(&junit, "junit", "", "write the results to this `file` too, in JUnit's form")
	flags.IntVar(&s.limit, "nodes", maxNodes, "`number` of nodes to test at most, spread over their names")
	flags.StringSliceVar(&asked, "network", nil, "test this further network too, a `namespace/name` of a NetworkAttachmentDefinition; may be repeated")
	flags.StringSliceVar(&s.pools, "pool", nil, "take the addresses from this `pool`; may be repeated, in the order of preference")
	flags.StringSliceVar(&s.egress, "egress", nil, "connect to this `host:port` from each node; may be repeated")
	flags.BoolVar(&s.policy, "policy", false, "test that a NetworkPolicy denies connections")
	flags.StringVar(&s.image, "image", "", "`image` of the pods; the default is the image of Fairlead's daemon")
	flags.StringVar(&system, "system-namespace", config.DefaultController().LeaderElection.Namespace, "`namespace` of Fairlead's programs")
	return cmd
}

// parse checks the settings, and returns the further networks that were asked for.
func (s settings) parse(networks []string) ([]string, error) {
	if s.limit < 1 {
		return nil, fmt.Errorf("--nodes is %d; must be at least 1", s.limit)
	}
	names, wrong := networkNames(networks)
	if wrong != "" {
		return nil, fmt.Errorf("--network is %q; must be namespace/name of a NetworkAttachmentDefinition", wrong)
	}
	for _, target := range s.egress {
		if host, port, err := net.SplitHostPort(target); err != nil || host == "" || port == "" {
			return nil, fmt.Errorf("--egress is %q; must be host:port, as example.com:443 or [2001:db8::1]:443", target)
		}
	}
	return names, nil
}

func writeFile(name string, v view) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(writeJUnit(file, v), file.Close())
}
