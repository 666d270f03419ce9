package migration

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/migrate/apply"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// kuryrFlags are the flags of `migrate kuryr`.
type kuryrFlags struct {
	planFlags
	cloud, cloudsFile string
}

func migrateKuryrCommand(c *kube.Connection) *cobra.Command {
	var f kuryrFlags
	cmd := &cobra.Command{
		Use:   "kuryr",
		Short: "Show how Fairlead would serve a cluster of Kuryr-Kubernetes",
		Long: "Show how Fairlead would serve a cluster of Kuryr-Kubernetes.\n\n" +
			"It reads Kuryr's configuration and objects and the pods, with --cloud also the ports,\n" +
			"trunks and networks in OpenStack, and changes nothing. The exit code is 0 if Fairlead\n" +
			"serves everything, 1 if it does not serve something or OpenStack has something else than\n" +
			"Kuryr, and 2 if the cluster or OpenStack could not be read.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !f.dryRun {
				return errors.New("it changes nothing: give --dry-run for the plan")
			}
			return planKuryr(c, cmd, f)
		},
	}
	f.add(cmd, "Kuryr's configuration, kuryr.conf; the default is that of its Deployment", "show the plan")
	flags := cmd.Flags()
	flags.StringVar(&f.cloud, "cloud", "", "`entry` of a clouds.yaml: compare with OpenStack")
	flags.StringVar(&f.cloudsFile, "clouds-file", "", "`path` of the clouds.yaml; the default is that of OpenStack's clients: OS_CLIENT_CONFIG_FILE, ./, ~/.config/openstack/, /etc/openstack/")
	return cmd
}

func planKuryr(c *kube.Connection, cmd *cobra.Command, f kuryrFlags) error {
	k := apply.Kuryr{Own: f.system}
	var err error
	if k.Config, err = f.read(); err != nil {
		return err
	}
	if k.Cloud, err = f.connect(cmd.Context()); err != nil {
		return err
	}
	var server string
	if k.API, server, err = c.Client(); err != nil {
		return err
	}
	state, plan, err := k.Plan(cmd.Context())
	if err != nil {
		return explainMigration(err, server)
	}
	view := buildKuryr(state, plan)
	return f.show(cmd, view, view.OK, func() string { return kuryrText(view) })
}

// reader is the name under which OpenStack is read. Nothing bears it: nothing is written.
const reader = "fairlead-migrate"

// connect logs in to OpenStack; nil without --cloud.
func (f kuryrFlags) connect(ctx context.Context) (apply.KuryrCloud, error) {
	if f.cloud == "" {
		if f.cloudsFile != "" {
			return nil, errors.New("--clouds-file needs --cloud, the name of an entry of it")
		}
		return nil, nil //nolint:nilnil // OpenStack is not asked
	}
	found, err := cloud.New(ctx, cloud.Config{File: f.cloudsFile, Cloud: f.cloud, Cluster: reader})
	if err != nil {
		return nil, fmt.Errorf("--cloud: %w", err)
	}
	return found, nil
}
