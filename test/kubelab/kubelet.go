package main

import (
	"context"
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register" // as in the programs' own mains
	"k8s.io/kubernetes/cmd/kube-proxy/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// runKubelet runs the kubelet of the same release, for nodes with real pods. It ends with
// the process.
func runKubelet(args []string) {
	os.Args = append([]string{"kubelet"}, args...)
	os.Exit(cli.Run(kubelet.NewKubeletCommand(context.Background())))
}

// runKubeProxy runs kube-proxy of the same release. It ends with the process.
func runKubeProxy(args []string) {
	os.Args = append([]string{"kube-proxy"}, args...)
	os.Exit(cli.Run(app.NewProxyCommand()))
}
