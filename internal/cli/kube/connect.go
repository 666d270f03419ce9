// Package kube reads the objects of a cluster that the commands show. It reports errors of
// the API server in terms that the user can act on.
package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/migrate/apply"
	"fairlead.dev/fairlead/internal/run"
)

const (
	// dialTimeout bounds the wait for a server that does not answer.
	dialTimeout = 10 * time.Second
	// requestTimeout bounds one list, which takes seconds in a large cluster.
	requestTimeout = time.Minute
)

// Connection describes the API server and context that the flags name.
type Connection struct {
	Kubeconfig string // a path, or empty
	Context    string // or empty
	Stderr     io.Writer
}

func (c *Connection) loader() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.Kubeconfig
	rules.WarnIfAllMissing = false // the error reports it
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: c.Context})
}

// Namespace returns the namespace of the kubeconfig's context.
func (c *Connection) Namespace() (string, error) {
	namespace, _, err := c.loader().Namespace()
	if err != nil {
		return "", explainConfig(err)
	}
	return namespace, nil
}

// config returns the configuration of all clients.
func (c *Connection) config() (*rest.Config, error) {
	cfg, err := c.loader().ClientConfig()
	if err != nil {
		return nil, explainConfig(err)
	}
	cfg.UserAgent = "fairlead/" + run.Version
	cfg.QPS = -1
	cfg.Timeout = requestTimeout
	cfg.Dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	cfg.WarningHandler = rest.NewWarningWriter(c.Stderr, rest.WarningWriterOptions{Deduplicate: true})
	return cfg, nil
}

// Client returns a client of the API server, without a cache, and the server's address.
// It sends no request.
func (c *Connection) Client() (client.Client, string, error) {
	cfg, err := c.config()
	if err != nil {
		return nil, "", err
	}
	return clientOf(cfg)
}

// ControllerClient returns a client that writes in the name of the controller of the
// cluster, with an administrator's rights: an admission policy refuses the writes of all
// others to its objects. It needs the right to impersonate. It returns api if no controller
// is installed.
func (c *Connection) ControllerClient(ctx context.Context, api client.Client) (client.Client, error) {
	var found appsv1.DeploymentList
	if err := api.List(ctx, &found, client.MatchingLabels{LabelProgram: ControllerName}); err != nil {
		return nil, fmt.Errorf("find the controller: %w", err)
	}
	if len(found.Items) == 0 {
		return api, nil
	}
	cfg, err := c.config()
	if err != nil {
		return nil, err
	}
	cfg.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + found.Items[0].Namespace + ":" + found.Items[0].Spec.Template.Spec.ServiceAccountName,
		Groups:   []string{"system:masters", "system:authenticated"},
	}
	controller, _, err := clientOf(cfg)
	return controller, err
}

func clientOf(cfg *rest.Config) (client.Client, string, error) {
	options, err := kinds()
	if err != nil {
		return nil, "", err
	}
	log.SetLogger(logr.Discard()) // without a logger the client prints a warning
	api, err := client.New(cfg, options)
	if err != nil {
		return nil, "", fmt.Errorf("kubeconfig: %w", err)
	}
	return api, cfg.Host, nil
}

// kinds returns the options of a client for the kinds that the commands use. The kinds are
// fixed, so no discovery is needed.
func kinds() (client.Options, error) {
	scheme := runtime.NewScheme()
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []struct {
		gv    schema.GroupVersion
		add   func(*runtime.Scheme) error
		name  string
		scope meta.RESTScope
	}{
		{corev1.SchemeGroupVersion, corev1.AddToScheme, "Pod", meta.RESTScopeNamespace},
		{corev1.SchemeGroupVersion, corev1.AddToScheme, "Node", meta.RESTScopeRoot},
		{corev1.SchemeGroupVersion, corev1.AddToScheme, "Namespace", meta.RESTScopeRoot},
		{corev1.SchemeGroupVersion, corev1.AddToScheme, "ConfigMap", meta.RESTScopeNamespace},
		{appsv1.SchemeGroupVersion, appsv1.AddToScheme, "Deployment", meta.RESTScopeNamespace},
		{appsv1.SchemeGroupVersion, appsv1.AddToScheme, "DaemonSet", meta.RESTScopeNamespace},
		{batchv1.SchemeGroupVersion, batchv1.AddToScheme, "CronJob", meta.RESTScopeNamespace},
		{coordinationv1.SchemeGroupVersion, coordinationv1.AddToScheme, "Lease", meta.RESTScopeNamespace},
		{eventsv1.SchemeGroupVersion, eventsv1.AddToScheme, "Event", meta.RESTScopeNamespace},
		{v1alpha1.GroupVersion, v1alpha1.AddToScheme, "PodAttachment", meta.RESTScopeNamespace},
		{v1alpha1.GroupVersion, v1alpha1.AddToScheme, "IPPool", meta.RESTScopeRoot},
		{v1alpha1.GroupVersion, v1alpha1.AddToScheme, "IPBlock", meta.RESTScopeRoot},
		{v1alpha1.GroupVersion, v1alpha1.AddToScheme, "IPReservation", meta.RESTScopeRoot},
		{v1alpha1.GroupVersion, v1alpha1.AddToScheme, "IPClaim", meta.RESTScopeNamespace},
		{v1alpha1.GroupVersion, v1alpha1.AddToScheme, "NodeNetwork", meta.RESTScopeRoot},
		{v1alpha1.GroupVersion, v1alpha1.AddToScheme, "PortPool", meta.RESTScopeRoot},
	} {
		if err := kind.add(scheme); err != nil {
			return client.Options{}, err
		}
		mapper.Add(kind.gv.WithKind(kind.name), kind.scope)
	}
	apply.AddKinds(mapper)
	return client.Options{Scheme: scheme, Mapper: mapper}, nil
}

// explainConfig returns the error of a kubeconfig in terms that the user can act on.
func explainConfig(err error) error {
	if clientcmd.IsEmptyConfig(err) {
		return errors.New("there is no kubeconfig: give --kubeconfig FILE, set KUBECONFIG, or write ~/.kube/config")
	}
	return fmt.Errorf("kubeconfig: %w", err)
}

// explain translates an error of the API server at server into terms that the user can
// act on. resource is the kind that was listed.
func explain(err error, server, resource string) error {
	var transport *url.Error
	switch {
	case errors.As(err, &transport):
		return fmt.Errorf("no answer from the API server at %s: %w", server, transport.Err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server at %s does not accept the kubeconfig's credentials: %w", server, err)
	case missing(err) && resource == "pods":
		return fmt.Errorf("the server at %s is not a Kubernetes API server: it has no pods", server)
	case missing(err):
		return fmt.Errorf("Fairlead's CRDs are not installed in the cluster at %s: it has no %s; "+ //nolint:staticcheck // begins with a name
			"in a checkout of Fairlead, apply them with: kubectl apply -k api/v1alpha1/crd", server, resource)
	}
	return fmt.Errorf("list %s: %w", resource, err)
}

// missing reports whether err means that the server does not know the resource.
func missing(err error) bool { return apierrors.IsNotFound(err) || meta.IsNoMatchError(err) }
