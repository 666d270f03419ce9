package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// pluginAnswer is the result of one run of the plugin: its output and its exit.
type pluginAnswer struct {
	stdout []byte
	err    error
}

// prevResult sets prevResult to the answer to an ADD.
func prevResult(a pluginAnswer) func(config map[string]any) {
	return func(config map[string]any) { config["prevResult"] = json.RawMessage(a.stdout) }
}

// cni runs the installed plugin with the installed configuration, as a runtime does.
func (n *labNode) cni(verb string, p *labPod, netns string) pluginAnswer {
	return n.call(verb, p, netns, func(map[string]any) {})
}

// call is cni, but change edits the configuration first.
func (n *labNode) call(verb string, p *labPod, netns string, change func(config map[string]any)) pluginAnswer {
	raw, err := os.ReadFile(n.conflist())
	if err != nil {
		return pluginAnswer{err: err}
	}
	var list struct {
		Name    string
		Plugins []map[string]any
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return pluginAnswer{err: err}
	}
	config := list.Plugins[0]
	config["name"], config["cniVersion"] = list.Name, "1.1.0"
	change(config)
	stdin, err := json.Marshal(config)
	if err != nil {
		return pluginAnswer{err: err}
	}
	return n.exec(map[string]string{
		"CNI_COMMAND": verb, "CNI_CONTAINERID": p.containerID, "CNI_NETNS": netns, "CNI_IFNAME": "eth0",
		"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=" + n.lab.cluster.Namespace + ";K8S_POD_NAME=" + p.name +
			";K8S_POD_INFRA_CONTAINER_ID=" + p.containerID + ";K8S_POD_UID=" + string(p.uid),
	}, stdin)
}

// exec runs the installed plugin with this environment and input.
func (n *labNode) exec(env map[string]string, stdin []byte) pluginAnswer {
	bin := filepath.Join(n.dir, "bin")
	cmd := exec.Command(filepath.Join(bin, "fairlead"))
	cmd.Env = []string{"CNI_PATH=" + bin}
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.Output()
	return pluginAnswer{stdout: out, err: err}
}

func (a pluginAnswer) wantOK(t *testing.T, what string) {
	t.Helper()
	if a.err != nil {
		t.Fatalf("%s: %v: %s", what, a.err, a.stdout)
	}
}

func (a pluginAnswer) wantError(t *testing.T, code int, words ...string) {
	t.Helper()
	var got struct {
		Code         int
		Msg, Details string
	}
	if a.err == nil || json.Unmarshal(a.stdout, &got) != nil || got.Code != code {
		t.Fatalf("want code %d, got %v: %s", code, a.err, a.stdout)
	}
	for _, word := range words {
		if !strings.Contains(got.Msg+"; "+got.Details, word) {
			t.Errorf("the message lacks %q: %s", word, got.Msg)
		}
	}
}

// wantLogged waits until the daemon's log contains a text.
func (n *labNode) wantLogged(t *testing.T, text string) {
	t.Helper()
	n.lab.cluster.Eventually(t, "the text in the daemon's log: "+text, func(context.Context) error {
		raw, err := os.ReadFile(n.log.Name())
		if err == nil && !bytes.Contains(raw, []byte(text)) {
			err = errors.New("the log lacks it")
		}
		return err
	})
}
