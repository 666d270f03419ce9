package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/internal/cniproto"
)

// The plugin works with libcni, the library through which runtimes execute it.
func TestLibcni(t *testing.T) {
	dir, plugin := t.TempDir(), build(t, "fairlead", ".")
	list, err := libcni.ConfListFromBytes(fmt.Appendf(nil,
		`{"cniVersion":"1.0.0","cniVersions":["0.4.0","1.0.0","1.1.0"],"name":"fairlead","plugins":[{"type":"fairlead","capabilities":{"portMappings":true},"socket":%q}]}`,
		filepath.Join(dir, "cni.sock")))
	if err != nil {
		t.Fatal(err)
	}
	runtime := libcni.NewCNIConfigWithCacheDir([]string{filepath.Dir(plugin)}, filepath.Join(dir, "cache"), nil)
	box := &libcni.RuntimeConf{
		ContainerID: "c1", NetNS: "/run/netns/a", IfName: "eth0", Args: [][2]string{{"K8S_POD_NAME", "pod"}},
		CapabilityArgs: map[string]any{"portMappings": []any{map[string]any{"HostPort": 80}}},
	}
	ctx := t.Context()

	var verbs []string
	answers := map[string]string{"ADD": `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/run/netns/a"}],"ips":[{"address":"10.0.0.2/24","interface":0}]}`}
	serve(t, dir, func(_ context.Context, r cniproto.Request) ([]byte, error) {
		verbs = append(verbs, r.Verb)
		if r.ContainerID == "gone" {
			return nil, &cniproto.Error{Code: cniproto.CodeUnknownContainer, Msg: "pod not found", Details: "on this node"}
		}
		return []byte(answers[r.Verb]), nil
	})

	result, err := runtime.AddNetworkList(ctx, list, box)
	if err != nil {
		t.Fatal(err)
	}
	current, err := types100.GetResult(result)
	if err != nil || len(current.IPs) != 1 || current.IPs[0].Address.String() != "10.0.0.2/24" {
		t.Errorf("result %v, %v", result, err)
	}
	err = errors.Join(
		runtime.CheckNetworkList(ctx, list, box),
		runtime.GetStatusNetworkList(ctx, list),
		runtime.GCNetworkList(ctx, list, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "c1", IfName: "eth0"}}}),
		runtime.DelNetworkList(ctx, list, box),
	)
	if err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"ADD", "CHECK", "STATUS", "GC", "DEL"}, verbs); diff != "" {
		t.Errorf("verbs (-want +got):\n%s", diff)
	}

	gone := *box
	gone.ContainerID = "gone"
	err = runtime.DelNetworkList(ctx, list, &gone)
	var e *types.Error
	if !errors.As(err, &e) || e.Code != types.ErrUnknownContainer || e.Error() != "pod absent; on this node" {
		t.Errorf("error %v, want the daemon's with its code", err)
	}
	info, err := runtime.GetVersionInfo(ctx, "fairlead")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(cniproto.Versions, info.SupportedVersions()); diff != "" {
		t.Errorf("versions (-want +got):\n%s", diff)
	}
}

// The request carries the name under which the plugin is executed, if it is an IPAM
// plugin's.
func TestName(t *testing.T) {
	dir, plugin := t.TempDir(), build(t, "fairlead", ".")
	serve(t, dir, func(_ context.Context, r cniproto.Request) ([]byte, error) {
		return fmt.Appendf(nil, "of %q", r.IPAM), nil
	})
	for _, name := range []string{"fairlead", "fairlead-ipam", "whereabouts"} {
		link := filepath.Join(t.TempDir(), name)
		if err := os.Symlink(plugin, link); err != nil {
			t.Fatal(err)
		}
		c := newCall("ADD", dir)
		want := `of ""`
		if name != "fairlead" {
			c.stdin = strings.Replace(strings.Replace(c.stdin, `"socket"`, `"ipam":{"socket"`, 1), "}", "}}", 1)
			want = fmt.Sprintf("of %q", name)
		}
		cmd := exec.Command(link)
		for k, v := range c.env {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
		cmd.Stdin = strings.NewReader(c.stdin)
		if out, err := cmd.Output(); err != nil || string(out) != want {
			t.Errorf("%s: %s, %v: want %s", name, out, err, want)
		}
	}
}
