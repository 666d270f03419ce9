package main

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"fairlead.dev/fairlead/test/podrunner/sandbox"
)

func TestLoadConf(t *testing.T) {
	const list = `{"cniVersion":"1.0.0","name":"NAME","plugins":[{"type":"x"}]}`
	tests := []struct {
		name    string
		files   map[string]string
		want    string // name of the network
		wantErr string
	}{
		{name: "nothing", wantErr: "no network config in"},
		{name: "other endings do not count", files: map[string]string{"10-a.conflist.tmp": list}, wantErr: "no network config in"},
		{
			name:  "the first in lexical order",
			files: map[string]string{"20-b.conflist": strings.ReplaceAll(list, "NAME", "b"), "10-a.conflist": strings.ReplaceAll(list, "NAME", "a")},
			want:  "a",
		},
		{
			name:  "a single plugin becomes a list",
			files: map[string]string{"10-a.conf": `{"cniVersion":"1.0.0","name":"single","type":"x"}`},
			want:  "single",
		},
		{
			name:    "a broken file hides the good one",
			files:   map[string]string{"00-broken.conflist": `{"cniVersion":`, "10-a.conflist": list},
			wantErr: "00-broken.conflist",
		},
		{
			name:    "a list without plugins",
			files:   map[string]string{"10-a.conflist": `{"cniVersion":"1.0.0","name":"a","plugins":[]}`},
			wantErr: "plugins",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range tt.files {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			got, err := loadConf(dir)
			if tt.wantErr != "" {
				if !errors.Is(err, errNotInitialized) || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("error %v; want %v with %q", err, errNotInitialized, tt.wantErr)
				}
				return
			}
			if err != nil || got.Name != tt.want {
				t.Errorf("network %v, %v; want %q", got, err, tt.want)
			}
		})
	}
}

func TestPodIPs(t *testing.T) {
	ip := func(cidr string, iface int) *types100.IPConfig {
		addr, network, err := net.ParseCIDR(cidr)
		if err != nil {
			t.Fatal(err)
		}
		out := &types100.IPConfig{Address: net.IPNet{IP: addr, Mask: network.Mask}}
		if iface >= 0 {
			out.Interface = &iface
		}
		return out
	}
	tests := []struct {
		name    string
		ips     []*types100.IPConfig
		want    []string
		wantErr string
	}{
		{name: "IPv4 comes first", ips: []*types100.IPConfig{ip("fd00::1/64", 0), ip("10.0.0.1/24", 0)}, want: []string{"10.0.0.1", "fd00::1"}},
		{name: "IPv6 alone", ips: []*types100.IPConfig{ip("fd00::1/64", 0)}, want: []string{"fd00::1"}},
		{name: "others keep their order", ips: []*types100.IPConfig{ip("fd00::1/64", 0), ip("fd00::2/64", 0), ip("10.0.0.1/24", 0), ip("10.0.0.2/24", 0)}, want: []string{"10.0.0.1", "fd00::1", "fd00::2", "10.0.0.2"}},
		{name: "only eth0 counts", ips: []*types100.IPConfig{ip("10.0.0.1/24", 1), ip("10.0.0.2/24", 0)}, want: []string{"10.0.0.2"}},
		{name: "no interface means eth0", ips: []*types100.IPConfig{ip("10.0.0.1/24", -1)}, want: []string{"10.0.0.1"}},
		{name: "none", ips: []*types100.IPConfig{ip("10.0.0.1/24", 1)}, wantErr: "no address of eth0"},
		{name: "interface out of range", ips: []*types100.IPConfig{ip("10.0.0.1/24", 2)}, wantErr: "interface 2 of 2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := podIPs(&types100.Result{
				Interfaces: []*types100.Interface{{Name: "eth0"}, {Name: "net1"}},
				IPs:        tt.ips,
			})
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("error %v; want an error with %q", err, tt.wantErr)
				}
				return
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
				t.Errorf("error %v, addresses (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestBadBandwidth(t *testing.T) {
	for _, text := range []string{"fast", "1", "2P"} {
		pod := newPod("web")
		pod.Annotations = map[string]string{egressBandwidth: text}
		if _, err := capabilityArgs(pod, dnsConfig{}, time.Now()); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("bandwidth %q: error %v; want one that names the value", text, err)
		}
	}
}

func TestNodeDNSComesFirst(t *testing.T) {
	node := parseResolvConf("# comment\nnameserver 192.0.2.1\nsearch a b\nsearch c d\noptions ndots:2\n")
	pod := newPod("web")
	pod.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"192.0.2.2"}}
	want := dnsConfig{Servers: []string{"192.0.2.1", "192.0.2.2"}, Searches: []string{"c", "d"}, Options: []string{"ndots:2"}}
	if diff := cmp.Diff(want, podDNS(pod, node)); diff != "" {
		t.Errorf("dns (-want +got):\n%s", diff)
	}
}

func TestParseFlags(t *testing.T) {
	tests := []struct {
		name string
		args string
		want string
	}{
		{"all is missing", "", "--kubeconfig is missing"},
		{"a bad taint", "--kubeconfig a --node b --state-dir c --register-with-taints x", `taint "x"`},
		{"a bad label", "--kubeconfig a --node b --state-dir c --node-labels x", `label "x"`},
		{"an argument", "--kubeconfig a --node b --state-dir c surplus", `"surplus"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := parseFlags(strings.Fields(tt.args), io.Discard); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v; want an error with %q", err, tt.want)
			}
		})
	}
	opts, err := parseFlags(strings.Fields("--kubeconfig a --node b --state-dir c --node-labels k=v,l= --register-with-taints k=v:NoSchedule"), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"k": "v", "l": ""}, opts.labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]corev1.Taint{{Key: "k", Value: "v", Effect: corev1.TaintEffectNoSchedule}}, opts.taints); diff != "" {
		t.Errorf("taints (-want +got):\n%s", diff)
	}
}

func TestDamagedRecordIsAnError(t *testing.T) {
	dir := t.TempDir()
	store, err := sandbox.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Put(sandbox.Record{ID: "a", UID: "u"}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sandboxes", "b.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := sandbox.Open(dir); err == nil || !strings.Contains(err.Error(), "b.json") {
		t.Errorf("Open: %v; want an error that names b.json", err)
	}
}

func TestStatusPatchReplacesAddresses(t *testing.T) {
	patch, err := statusPatch("u", corev1.PodStatus{PodIP: "10.0.0.2", PodIPs: []corev1.PodIP{{IP: "10.0.0.2"}, {IP: "fd00::2"}}}, "podIPs")
	if err != nil {
		t.Fatal(err)
	}
	before := newPod("web")
	before.UID = "u"
	before.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}}
	original, err := json.Marshal(before)
	if err != nil {
		t.Fatal(err)
	}
	merged, err := strategicpatch.StrategicMergePatch(original, patch, &corev1.Pod{})
	if err != nil {
		t.Fatal(err)
	}
	var after corev1.Pod
	if err := json.Unmarshal(merged, &after); err != nil {
		t.Fatal(err)
	}
	want := []corev1.PodIP{{IP: "10.0.0.2"}, {IP: "fd00::2"}}
	if diff := cmp.Diff(want, after.Status.PodIPs); diff != "" || after.Status.PodIP != "10.0.0.2" || after.Status.QOSClass != corev1.PodQOSBestEffort {
		t.Errorf("podIP %q, QoS class %q, podIPs (-want +got):\n%s", after.Status.PodIP, after.Status.QOSClass, diff)
	}
}
