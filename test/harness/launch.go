package harness

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Flags are the flags that the programs have in common.
type Flags struct {
	// Bin is the directory of the programs.
	Bin string
	// KeepLogs keeps the logs after a success too.
	KeepLogs bool
}

// Set returns the flags of a program, to which the program adds its own. Bin is the directory
// of the running program until they are parsed.
func (f *Flags) Set(program string, stderr io.Writer) (*flag.FlagSet, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program's own executable: %w", err)
	}
	f.Bin = filepath.Dir(self)
	flags := flag.NewFlagSet(program, flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&f.Bin, "bin", f.Bin, "`directory` of the programs")
	flags.BoolVar(&f.KeepLogs, "keep-logs", false, "keep the logs after a success too")
	return flags, nil
}

// Parse parses a command line without further arguments. It makes the paths absolute, which are
// flags of the program, and Bin; an empty path stays empty.
func (f *Flags) Parse(flags *flag.FlagSet, args []string, paths ...*string) error {
	if err := flags.Parse(args); err != nil {
		return err
	}
	var errs []error
	if flags.NArg() > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
	for _, path := range append(paths, &f.Bin) {
		if *path == "" {
			continue
		}
		absolute, err := filepath.Abs(*path)
		*path, errs = absolute, append(errs, err)
	}
	return errors.Join(errs...)
}

// WrongFlags prints the error of a command line and returns the exit code 2. It returns 0 if
// the user asked for help, which the flags have printed.
func WrongFlags(program string, err error, stderr io.Writer) int {
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	_, _ = fmt.Fprintf(stderr, "%s: %v\n", program, err)
	return 2
}

// Failed prints the error of a run and returns the exit code: 130 after Ctrl-C, otherwise 1.
func Failed(program string, err error, stderr io.Writer) int {
	if err == ErrInterrupted { //nolint:errorlint // joined with another error it is not clean
		_, _ = fmt.Fprintf(stderr, "%s: %v\n", program, err)
		return 130
	}
	_, _ = fmt.Fprintf(stderr, "%s: FAILED: %v\n", program, err)
	return 1
}
