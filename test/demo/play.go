package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/pages"
)

// play starts a cluster that stays, gives every command of pages of the documentation in
// a shell, one page after the other, shows their outputs, and ends the cluster. It returns
// the exit code: 0 if each command succeeded and printed the lines of the page in their order.
func (s settings) play(paths []string, stdout, stderr io.Writer) int {
	commands, err := s.commandsIn(paths)
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "demo: FAILED: %v\n", err)
		return 1
	}
	if code := s.up(io.Discard, stderr); code != 0 {
		return code
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	err = s.giveAll(ctx, commands, stdout)
	interrupted := ctx.Err() != nil
	stop()
	if code := s.down(io.Discard, stderr); code != 0 {
		return code
	}
	switch {
	case interrupted:
		_, _ = fmt.Fprintf(stderr, "demo: %v\n", harness.ErrInterrupted)
		return 130
	case err != nil:
		_, _ = fmt.Fprintf(stderr, "demo: FAILED: %v\n", err)
		return 1
	}
	_, _ = fmt.Fprintf(stdout, "demo: OK commands=%d leaked=0\n", len(commands))
	return 0
}

// language is that of the blocks with commands for the cluster.
func (s settings) language() string {
	if s.OpenStack {
		return "console openstack"
	}
	return "console"
}

// commandsIn returns the commands of pages for the cluster.
func (s settings) commandsIn(paths []string) ([]command, error) {
	var out []command
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		own := commandsOf(string(text), s.language())
		if len(own) == 0 {
			return nil, fmt.Errorf("%s has no commands for this cluster: must have blocks of ```%s with lines that begin with $", path, s.language())
		}
		out = append(out, own...)
	}
	return out, nil
}

func (s settings) giveAll(ctx context.Context, commands []command, stdout io.Writer) error {
	user, err := newShell(ctx, s.place())
	if err != nil {
		return err
	}
	defer user.end()
	for _, c := range commands {
		if c.heading != "" {
			_, _ = fmt.Fprintf(stdout, "\n## %s\n\n", c.heading)
		}
		_, _ = fmt.Fprintf(stdout, "$ %s\n", strings.Join(c.lines, "\n> "))
		output, err := user.give(ctx, c)
		_, _ = io.WriteString(stdout, output)
		if err != nil {
			return err
		}
	}
	return nil
}

// command is one command of a page.
type command struct {
	// heading is that of its part of the page, in the first command of the part.
	heading string
	// lines are the command, and prints the lines that it must print. Three dots stand for
	// any text.
	lines, prints []string
}

var looking = regexp.MustCompile(`^(kubectl get|fairlead|neutron ports|shell \S+ (ip|ls|nft list)) `)

// looks reports whether the command shows a state and changes none, so that it may be given
// again.
func (c command) looks() bool { return looking.MatchString(c.lines[0] + " ") }

// commandsOf returns the commands of a page, in blocks of a language.
func commandsOf(page, language string) []command {
	var out []command
	lines := strings.Split(page, "\n")
	named := ""
	for _, block := range pages.Blocks(page) {
		if block.Language != language {
			continue
		}
		heading := headingAbove(lines[:block.Line])
		for _, line := range block.Lines {
			if first, ok := strings.CutPrefix(line, "$ "); ok {
				c := command{lines: []string{first}}
				if heading != named {
					c.heading, named = heading, heading
				}
				out = append(out, c)
			} else if more, ok := strings.CutPrefix(line, "> "); ok && len(out) > 0 {
				out[len(out)-1].lines = append(out[len(out)-1].lines, more)
			} else if len(out) > 0 {
				out[len(out)-1].prints = append(out[len(out)-1].prints, line)
			}
		}
	}
	return out
}

// headingAbove returns the last heading of a part of the page, "" if there is none.
func headingAbove(lines []string) string {
	for _, line := range slices.Backward(lines) {
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			return heading
		}
	}
	return ""
}

// missing returns the first line of the page that the output lacks, "" if it has all.
func (c command) missing(output string) string {
	lines := strings.Split(output, "\n")
	for _, want := range c.prints {
		// Four dots are the dot of an address, and any text.
		pattern := regexp.QuoteMeta(strings.Join(strings.Fields(want), " "))
		pattern = strings.ReplaceAll(strings.ReplaceAll(pattern, `\.\.\.\.`, `\..*`), `\.\.\.`, ".*")
		line := regexp.MustCompile("^" + pattern + "$")
		for {
			if len(lines) == 0 {
				return want
			}
			got := strings.Join(strings.Fields(lines[0]), " ")
			lines = lines[1:]
			if line.MatchString(got) {
				break
			}
		}
	}
	return ""
}

// userShell is a bash that keeps its variables from one command to the next.
type userShell struct {
	cmd    *exec.Cmd
	input  io.WriteCloser
	output *bufio.Scanner
}

func newShell(ctx context.Context, p place) (*userShell, error) {
	cmd := exec.CommandContext(ctx, "bash", "--norc")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+p.path("kubeconfig"), "PATH="+string(p)+":"+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a shell: %w", err)
	}
	return &userShell{cmd, input, bufio.NewScanner(output)}, nil
}

func (u *userShell) end() {
	_ = u.input.Close()
	_ = u.cmd.Wait() // its status is that of the last command
}

const (
	// patience is how long a command that shows a state is given again. The node daemon looks
	// at files of others every minute.
	patience = 2 * time.Minute
	// between is the time between two attempts.
	between = 200 * time.Millisecond
)

// give gives a command and returns its output. It fails if the command fails or the output
// lacks lines of the page. A command with lines of its own may fail: they have the failure.
func (u *userShell) give(ctx context.Context, c command) (string, error) {
	for deadline := time.Now().Add(patience); ; {
		output, status, err := u.run(c)
		if err != nil {
			return output, err
		}
		missing := c.missing(output)
		switch {
		case missing == "" && (status == 0 || len(c.prints) > 0):
			return output, nil
		case missing == "":
			err = fmt.Errorf("%s: exit status %d", c.lines[0], status)
		default:
			err = fmt.Errorf("%s: exit status %d, and the line of the page is missing: %s", c.lines[0], status, missing)
		}
		if !c.looks() || time.Now().After(deadline) {
			return output, err
		}
		select {
		case <-ctx.Done():
			return output, ctx.Err()
		case <-time.After(between):
		}
	}
}

func (u *userShell) run(c command) (output string, status int, err error) {
	const end = "--- status of the command: "
	_, err = fmt.Fprintf(u.input, "{ %s\n} 2>&1 </dev/null\nprintf '\\n%s%%d\\n' $?\n", strings.Join(c.lines, "\n"), end)
	if err != nil {
		return "", 0, fmt.Errorf("%s: the shell has ended: %w", c.lines[0], err)
	}
	var out bytes.Buffer
	for u.output.Scan() {
		if rest, ok := strings.CutPrefix(u.output.Text(), end); ok {
			_, err := fmt.Sscanf(rest, "%d", &status)
			return strings.TrimSuffix(out.String(), "\n"), status, err
		}
		out.WriteString(u.output.Text() + "\n")
	}
	return out.String(), 0, fmt.Errorf("%s: the shell has ended", c.lines[0])
}
