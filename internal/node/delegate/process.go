package delegate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"time"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/run"
)

const (
	// maxOutput bounds the result of a plugin, maxStderr its log in an error, in bytes.
	maxOutput = 1 << 20
	maxStderr = 4 << 10
	// killGrace bounds the wait for the output of a plugin that has ended or was killed: a
	// process that has left its group may keep the output open.
	killGrace = time.Second
	// searchPath is PATH of plugins. Some plugins execute iptables or nft.
	searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// environment has the variables of a plugin.
type environment struct {
	verb, netns, path string
	// made is the attachment; it is empty for a verb without one.
	made plug.Made
}

// variables returns exactly the variables of CNI, and PATH. The library would add those of
// the daemon.
func (e environment) variables() []string {
	env := []string{
		"CNI_COMMAND=" + e.verb, "CNI_CONTAINERID=" + e.made.ContainerID, "CNI_NETNS=" + e.netns,
		"CNI_IFNAME=" + e.made.Name, "CNI_PATH=" + e.path, "PATH=" + searchPath,
	}
	if e.made.Plugins != nil {
		env = append(env, "CNI_ARGS="+e.made.Plugins.Args)
	}
	return env
}

// process executes plugins as processes.
type process struct{ host *link.Namespace }

// execute executes a plugin in a process group of its own, which is killed when ctx
// ends. The error has the plugin's own error (*types.Error) or the beginning of its log.
func (p process) execute(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	stdout, stderr := &bounded{most: maxOutput}, &bounded{most: maxStderr}
	cmd := exec.CommandContext(ctx, path)
	cmd.Env, cmd.Dir = env, "/"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), stdout, stderr
	// The plugin ends with the thread that started it: after a kill of the daemon, no ADD
	// goes on while the next daemon executes its DEL.
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = killGrace
	err := p.onThread(cmd.Run)
	switch {
	case errors.Is(err, exec.ErrWaitDelay) && cmd.ProcessState.Success():
		err = nil // it succeeded, and left a process that keeps the output open
	case err != nil:
		return nil, failure(err, stdout.kept, stderr.text())
	}
	if stdout.lost > 0 {
		return nil, fmt.Errorf("it wrote more than %d bytes as its result", maxOutput)
	}
	return stdout.kept, err
}

// onThread runs fn on a thread of its own, in the host's network namespace.
func (p process) onThread(fn func() error) error {
	if p.host != nil {
		return p.host.Do(fn)
	}
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		result <- fn()
	}()
	return <-result
}

// failure returns the error of a plugin: its own error object, otherwise its exit with the
// beginning of its log.
func failure(err error, stdout []byte, log string) error {
	own := &cnitypes.Error{}
	if json.Unmarshal(stdout, own) == nil && own.Msg != "" {
		own.Msg, own.Details = run.ClipTo(own.Msg, maxStderr), run.ClipTo(own.Details, maxStderr)
		return own
	}
	if log == "" {
		return fmt.Errorf("%w, without a message", err)
	}
	return fmt.Errorf("%w: %s", err, log)
}

// bounded keeps the first bytes that are written to it, and counts the rest.
type bounded struct {
	kept       []byte
	most, lost int
}

func (b *bounded) Write(p []byte) (int, error) {
	n := min(len(p), b.most-len(b.kept))
	b.lost += len(p) - n
	b.kept = append(b.kept, p[:n]...)
	return len(p), nil
}

func (b *bounded) text() string {
	text := strings.ToValidUTF8(string(bytes.TrimSpace(b.kept)), "?")
	if b.lost > 0 {
		text += "..."
	}
	return text
}
