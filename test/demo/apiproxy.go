package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// clusterTimeout bounds the checks of the user's cluster before the demo does anything.
const clusterTimeout = 20 * time.Second

func loadCluster(kubeconfig string) (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	cfg.QPS = -1
	return cfg, nil
}

// serveAPI passes requests from a unix socket on to the user's cluster with the user's
// credentials. The demo's network namespaces cannot reach the cluster, and do not need
// the credentials.
func serveAPI(ctx context.Context, kubeconfig, socket string) (*http.Server, error) {
	cfg, err := loadCluster(kubeconfig)
	if err != nil {
		return nil, err
	}
	transport, err := rest.TransportFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	target, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("listen for the demo's requests to the cluster: %w", err)
	}
	server := &http.Server{
		Handler: &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) {
				r.SetURL(target)
				r.Out.Host = target.Host
			},
			Transport:     transport,
			FlushInterval: -1, // watches
			ErrorLog:      log.New(io.Discard, "", 0),
		},
		ReadHeaderTimeout: time.Minute,
	}
	go func() { _ = server.Serve(listener) }() // ends with Close
	return server, nil
}

// right is a kind of objects that the demo uses in the user's cluster.
type right struct{ group, resource string }

func rights() []right {
	return []right{
		{"", "namespaces"},
		{"", "nodes"},
		{"", "pods"},
		{"apiextensions.k8s.io", "customresourcedefinitions"},
		{"coordination.k8s.io", "leases"},
		{"fairlead.dev", "ippools"},
		{"fairlead.dev", "ipblocks"},
		{"fairlead.dev", "nodenetworks"},
		{"fairlead.dev", "podattachments"},
	}
}

// clusterLacks checks that the user's cluster can be reached and grants the rights that
// the demo needs.
func clusterLacks(ctx context.Context, kubeconfig string) []string {
	ctx, cancel := context.WithTimeout(ctx, clusterTimeout)
	defer cancel()
	cfg, err := loadCluster(kubeconfig)
	if err != nil {
		return []string{err.Error()}
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return []string{fmt.Sprintf("a usable kubeconfig (%v)", err)}
	}
	var lacks []string
	for _, need := range rights() {
		var refused []string
		for _, verb := range []string{"create", "delete", "list", "watch", "patch"} {
			review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
				Spec: authorizationv1.SelfSubjectAccessReviewSpec{
					ResourceAttributes: &authorizationv1.ResourceAttributes{Group: need.group, Resource: need.resource, Verb: verb},
				},
			}, metav1.CreateOptions{})
			if err != nil {
				return append(lacks, fmt.Sprintf("a cluster that answers (%s, from %s): %v", cfg.Host, kubeconfig, err))
			}
			if !review.Status.Allowed {
				refused = append(refused, verb)
			}
		}
		if len(refused) > 0 {
			lacks = append(lacks, fmt.Sprintf("the right to %s %s in the cluster (%s): use an administrator's kubeconfig", strings.Join(refused, ", "), need.resource, cfg.Host))
		}
	}
	return append(lacks, otherFairlead(ctx, client)...)
}

// leaseMaxAge distinguishes a running controller from a killed one.
const leaseMaxAge = time.Minute

// otherFairlead finds a Fairlead that runs in the cluster: it would serve the demo's
// nodes too.
func otherFairlead(ctx context.Context, client kubernetes.Interface) []string {
	leases, err := client.CoordinationV1().Leases("").List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=fairlead-controller"})
	if err != nil {
		return []string{fmt.Sprintf("the right to look for a running Fairlead in the cluster (%v)", err)}
	}
	for _, lease := range leases.Items {
		if renewed := lease.Spec.RenewTime; renewed != nil && time.Since(renewed.Time) < leaseMaxAge && lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != "" {
			return []string{fmt.Sprintf("a cluster in which no Fairlead runs: the controller %s in namespace %s does", *lease.Spec.HolderIdentity, lease.Namespace)}
		}
	}
	return nil
}
