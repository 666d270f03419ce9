// Command multus replaces Multus in tests: it passes requests on to the cluster's
// network, by libcni with a cache of its own. Its GC uses the contents of this cache as
// the list of valid attachments, whatever the runtime lists.
//
// Its configuration names the file of the cluster's network and the directory of the
// cache, by Multus' names for them. With a list of delegates it attaches a sandbox to each
// of them, as delegates.go describes.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"
	cnitypes "github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

func main() {
	if err := run(context.Background(), os.Getenv, os.Stdin, os.Stdout); err != nil {
		failure := cnitypes.NewError(cnitypes.ErrInternal, err.Error(), "")
		_ = failure.Print()
		os.Exit(1)
	}
}

func run(ctx context.Context, env func(string) string, stdin io.Reader, stdout io.Writer) error {
	verb := env("CNI_COMMAND")
	if verb == "VERSION" {
		_, err := io.WriteString(stdout, `{"cniVersion":"1.1.0","supportedVersions":["0.4.0","1.0.0","1.1.0"]}`)
		return err
	}
	var config config
	if err := json.NewDecoder(stdin).Decode(&config); err != nil {
		return fmt.Errorf("network configuration: %w", err)
	}
	if len(config.Delegates) > 0 {
		return config.delegate(ctx, verb, env, stdout)
	}
	list, err := libcni.NetworkConfFromFile(config.ClusterNetwork)
	if err != nil {
		return fmt.Errorf("clusterNetwork: %q: %w", config.ClusterNetwork, err)
	}
	cni, conf := config.runtime(env)
	switch verb {
	case "ADD":
		res, err := cni.AddNetworkList(ctx, list, conf)
		if err != nil {
			return err
		}
		if res, err = res.GetAsVersion(config.CNIVersion); err != nil {
			return err
		}
		return res.PrintTo(stdout)
	case "CHECK":
		return cni.CheckNetworkList(ctx, list, conf)
	case "DEL":
		return cni.DelNetworkList(ctx, list, conf)
	case "STATUS":
		return cni.GetStatusNetworkList(ctx, list)
	case "GC":
		return collect(ctx, cni, list)
	default:
		return fmt.Errorf("CNI_COMMAND: %q: must be ADD, CHECK, DEL, STATUS, GC or VERSION of CNI %s", verb, types100.ImplementedSpecVersion)
	}
}

// config is the part of Multus' configuration that has an effect here.
type config struct {
	CNIVersion     string            `json:"cniVersion"`
	ClusterNetwork string            `json:"clusterNetwork"`
	CNIDir         string            `json:"cniDir"`
	Delegates      []json.RawMessage `json:"delegates"`
}

// runtime returns a libcni with the cache, and the runtime's arguments.
func (c config) runtime(env func(string) string) (*libcni.CNIConfig, *libcni.RuntimeConf) {
	conf := &libcni.RuntimeConf{ContainerID: env("CNI_CONTAINERID"), NetNS: env("CNI_NETNS"), IfName: env("CNI_IFNAME")}
	for pair := range strings.SplitSeq(env("CNI_ARGS"), ";") {
		if key, value, ok := strings.Cut(pair, "="); ok {
			conf.Args = append(conf.Args, [2]string{key, value})
		}
	}
	return libcni.NewCNIConfigWithCacheDir(filepath.SplitList(env("CNI_PATH")), c.CNIDir, nil), conf
}

// collect calls GC with the contents of the cache as the valid attachments.
func collect(ctx context.Context, cni *libcni.CNIConfig, list *libcni.NetworkConfigList) error {
	cached, err := cni.GetCachedAttachments("")
	if err != nil {
		return err
	}
	var args libcni.GCArgs
	for _, a := range cached {
		args.ValidAttachments = append(args.ValidAttachments, cnitypes.GCAttachment{ContainerID: a.ContainerID, IfName: a.IfName})
	}
	return cni.GCNetworkList(ctx, list, &args)
}
