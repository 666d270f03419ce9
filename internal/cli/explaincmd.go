package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

func explainCommand(c *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "Explain step by step where something stands and what it waits for",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(explainPodCommand(c))
	return cmd
}

func explainPodCommand(c *connection) *cobra.Command {
	var (
		out       output
		namespace string
	)
	cmd := &cobra.Command{
		Use:   "pod [NAMESPACE/]NAME",
		Short: "Explain step by step where a pod's network stands and what it waits for",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			where, name, err := podNamed(c, args[0], namespace)
			if err != nil {
				return err
			}
			snap, err := c.snapshot(cmd.Context(), wanted{pods: true, namespace: where, pod: name})
			if err != nil {
				return err
			}
			view, found := buildExplain(snap, where, name)
			if !found {
				return fmt.Errorf("there is no pod %s/%s, and no PodAttachment of one", where, name)
			}
			return out.write(cmd.OutOrStdout(), view, func() string { return explainText(view, snap.now) })
		},
	}
	out.addFlag(cmd)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "`namespace` of the pod; the default is the context's")
	return cmd
}

// podNamed splits "namespace/name" or "name". The namespace of a bare name is the flag's,
// otherwise the context's.
func podNamed(c *connection, arg, flag string) (namespace, name string, err error) {
	namespace, name, qualified := strings.Cut(arg, "/")
	switch {
	case !qualified && flag != "":
		return flag, arg, nil
	case !qualified:
		namespace, err = c.namespace()
		return namespace, arg, err
	case namespace == "" || name == "" || strings.Contains(name, "/"):
		return "", "", fmt.Errorf("%q is not a pod: write it as namespace/name", arg)
	case flag != "" && flag != namespace:
		return "", "", fmt.Errorf("%s is in namespace %s and --namespace says %s: give one of them", arg, namespace, flag)
	}
	return namespace, name, nil
}
