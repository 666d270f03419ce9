package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/cli/output"
)

func explainCommand(c *kube.Connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "Explain step by step where something stands and what it waits for",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(explainPodCommand(c))
	return cmd
}

func explainPodCommand(c *kube.Connection) *cobra.Command {
	var (
		out       output.Format
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
			snap, err := c.Snapshot(cmd.Context(), kube.Wanted{Pods: true, Namespace: where, Pod: name})
			if err != nil {
				return err
			}
			view, found := buildExplain(snap, where, name)
			if !found {
				return fmt.Errorf("there is no pod %s/%s, and no PodAttachment of one", where, name)
			}
			return out.Write(cmd.OutOrStdout(), view, func() string { return explainText(view, snap.Now) })
		},
	}
	out.AddFlag(cmd)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "`namespace` of the pod; the default is the context's")
	return cmd
}

// podNamed splits "namespace/name" or "name". The namespace of a bare name is the flag's,
// otherwise the context's.
func podNamed(c *kube.Connection, arg, flag string) (namespace, name string, err error) {
	namespace, name, qualified := strings.Cut(arg, "/")
	switch {
	case !qualified && flag != "":
		return flag, arg, nil
	case !qualified:
		namespace, err = c.Namespace()
		return namespace, arg, err
	case namespace == "" || name == "" || strings.Contains(name, "/"):
		return "", "", fmt.Errorf("%q is not a pod: write it as namespace/name", arg)
	case flag != "" && flag != namespace:
		return "", "", fmt.Errorf("%s is in namespace %s and --namespace says %s: give one of them", arg, namespace, flag)
	}
	return namespace, name, nil
}
