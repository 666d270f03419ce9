// Package bugreport has the command that packs the state of Fairlead in a cluster into one
// file for a report, without secrets.
package bugreport

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"time"

	"github.com/spf13/cobra"

	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/cli/output"
	"fairlead.dev/fairlead/internal/config"
)

// Command returns the command `bugreport`.
func Command(c *kube.Connection) *cobra.Command {
	var (
		file, system string
		nodes        []string
	)
	cmd := &cobra.Command{
		Use:   "bugreport",
		Short: "Pack objects and logs of Fairlead into a file for a report, without secrets",
		Long: "Pack objects and logs of Fairlead into a file for a report, without secrets.\n\n" +
			"The file has Fairlead's objects, nodes, pods, events and networks, and the logs of the\n" +
			"controllers and of the daemons of at most 20 nodes. Secrets are not read. Environment and\n" +
			"arguments of containers, and annotations of other programs, are left out. Names and\n" +
			"addresses stay. Look at it before you send it. The exit code is 0 if everything was\n" +
			"read, 1 if a part could not be read, which index.txt names, and 2 if there is no file.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			from, err := c.Bundle()
			if err != nil {
				return err
			}
			now := time.Now()
			name := "fairlead-bugreport-" + now.UTC().Format("20060102-150405")
			if file == "" {
				file = name + ".tar.gz"
			}
			report := &collector{from: from, system: system, nodes: nodes}
			err = write(file, name, now, func(a archive) error {
				report.to = a
				return report.collect(cmd.Context(), now)
			})
			if err != nil {
				return err
			}
			for _, f := range report.failed {
				cmd.PrintErrln("not read:", output.OneLine(f))
			}
			_, _ = fmt.Fprintln(cmd.OutOrStdout(), file)
			if len(report.failed) > 0 {
				return output.ErrAttention
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "`file` to write, which must not exist; the default has the time in its name")
	cmd.Flags().StringVar(&system, "system-namespace", config.DefaultController().LeaderElection.Namespace, "`namespace` of Fairlead's programs")
	cmd.Flags().StringSliceVar(&nodes, "node", nil, "read the logs of the daemon of this `node`; may be repeated")
	return cmd
}

// files is an archive of files in a folder, in a file.
type files struct {
	*tar.Writer
	folder string
	now    time.Time
}

func (f files) add(name string, content []byte) error {
	header := &tar.Header{Name: path.Join(f.folder, name), Mode: 0o600, Size: int64(len(content)), ModTime: f.now}
	if err := f.WriteHeader(header); err != nil {
		return err
	}
	_, err := f.Write(content)
	return err
}

// write writes the archive into a new file. After a failure the file is removed.
func write(file, folder string, now time.Time, fill func(archive) error) (err error) {
	out, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists: name another file with -o", file)
	}
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(file))
		}
	}()
	zip := gzip.NewWriter(out)
	a := files{tar.NewWriter(zip), folder, now}
	return errors.Join(fill(a), a.Close(), zip.Close(), out.Close())
}
