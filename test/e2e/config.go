package main

import (
	"fmt"
	"os"
	"path/filepath"

	"fairlead.dev/fairlead/test/lab"
)

const (
	containerd   = "/run/containerd/containerd.sock"
	kubeletState = "/var/lib/kubelet"
)

// containerdConfig keeps the default paths of state and of CNI: the node has a /run, a
// /var/lib, a /opt/cni and an /etc/cni of its own.
const containerdConfig = `version = 3
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.tracing", "io.containerd.nri.v1.nri"]
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = %q
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    use_internal_loopback = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = false
`

func (n *node) writeConfigs() error {
	toml := fmt.Sprintf(containerdConfig, pauseImage)
	if err := os.WriteFile(n.file("containerd.toml"), []byte(toml), 0o600); err != nil {
		return err
	}
	configs := map[string]any{"kubelet.yaml": n.kubelet(), "kube-proxy.yaml": n.kubeProxy(), "fairlead.yaml": n.fairlead()}
	for name, config := range configs {
		if err := lab.WriteYAML(n.file(name), config); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) kubelet() map[string]any {
	return map[string]any{
		"apiVersion":                  "kubelet.config.k8s.io/v1beta1",
		"kind":                        "KubeletConfiguration",
		"address":                     n.addresses()[0].String(),
		"authentication":              map[string]any{"anonymous": map[string]any{"enabled": false}, "webhook": map[string]any{"enabled": false}, "x509": map[string]any{"clientCAFile": filepath.Join(filepath.Dir(n.kubeletConfig), "ca.crt")}},
		"authorization":               map[string]any{"mode": "AlwaysAllow"},
		"cgroupDriver":                "cgroupfs",
		"cgroupRoot":                  "/" + n.cgroup,
		"failCgroupV1":                false, // some kernels have nothing newer
		"failSwapOn":                  false,
		"containerRuntimeEndpoint":    "unix://" + containerd,
		"healthzBindAddress":          "127.0.0.1",
		"resolvConf":                  "",
		"clusterDNS":                  n.dns,
		"clusterDomain":               "cluster.local",
		"volumePluginDir":             n.file("volume-plugins"),
		"evictionHard":                map[string]string{"memory.available": "0%"},
		"imageGCHighThresholdPercent": 100,
		"makeIPTablesUtilChains":      false,
		"nodeStatusUpdateFrequency":   "2s",
		"syncFrequency":               "10s",
		"kubeAPIQPS":                  500,
		"kubeAPIBurst":                1000,
	}
}

func (n *node) kubeProxy() map[string]any {
	return map[string]any{
		"apiVersion":         "kubeproxy.config.k8s.io/v1alpha1",
		"kind":               "KubeProxyConfiguration",
		"mode":               "nftables",
		"hostnameOverride":   n.name,
		"clusterCIDR":        join(n.podRanges),
		"clientConnection":   map[string]any{"kubeconfig": n.proxyConfig},
		"healthzBindAddress": "127.0.0.1:10256",
		"metricsBindAddress": "127.0.0.1:10249",
		// The table of connections is the machine's; a namespace cannot size it.
		"conntrack": map[string]any{"maxPerCore": 0, "min": 0},
	}
}

func (n *node) fairlead() map[string]any {
	return map[string]any{
		"nodeName":       n.name,
		"kubeconfig":     n.account(),
		"metricsAddress": "127.0.0.1:9471",
		"cni": map[string]any{
			"pluginSource": filepath.Join(n.programs, "fairlead-cni"),
		},
	}
}
