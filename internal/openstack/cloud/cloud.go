// Package cloud is Neutron as Fairlead uses it: ports, trunks, networks, routes and security
// groups, each tagged with the cluster and found again by a deterministic name.
//
// It is the only home of gophercloud, which gets tokens, renews them, and has the requests and
// the answers of Neutron's API. Requests that gophercloud lacks are here. Answers are read
// back, since clouds accept fields that they then drop.
package cloud

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/prometheus/client_golang/prometheus"
)

// Config describes how to reach the cloud.
type Config struct {
	// File is the path of a clouds.yaml; empty for the places where clients of OpenStack look. It
	// is read again when authentication fails, so that renewed credentials need no restart.
	File string
	// Cloud is the name of an entry of File.
	Cloud string
	// Cluster names this cluster among all that use the same cloud: 1 to 40 lower-case
	// letters, digits and "-". Everything that Fairlead makes bears it as a tag.
	Cluster string
	// Registry gets the metrics of calls; nil for none.
	Registry prometheus.Registerer
}

// Cloud is a connection to Neutron. It is safe for concurrent use.
//
// A call that the cloud defers (429, 503, Retry-After) defers all other calls of the
// process as well. A call is bounded by its context, and otherwise by two minutes. A read is
// repeated after a transport error; a write is not, and its outcome is then unknown:
// ErrUnavailable.
type Cloud struct {
	// Routers, Groups and Bindings have the calls for these.
	Routers  *Routers
	Groups   *Groups
	Bindings *Bindings

	api  api
	gate *gate
	// bulk has room for the one request that creates many ports.
	bulk chan struct{}
}

var clusterName = regexp.MustCompile(`^[a-z0-9-]{1,40}$`)

// New connects to the cloud and gets a token. Errors: ErrUnavailable, ErrForbidden, ErrInvalid.
func New(ctx context.Context, cfg Config) (*Cloud, error) {
	if !clusterName.MatchString(cfg.Cluster) {
		return nil, fmt.Errorf("%w: %q is no name of a cluster: want 1 to 40 lower-case letters, digits and \"-\"", ErrInvalid, cfg.Cluster)
	}
	l := &login{file: cfg.File, cloud: cfg.Cloud}
	access, err := l.read()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	m, err := newMetrics(cfg.Registry)
	if err != nil {
		return nil, fmt.Errorf("register the metrics of the cloud: %w", err)
	}
	base, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return nil, fmt.Errorf("%w: the default HTTP transport of the process is a %T", ErrInvalid, http.DefaultTransport)
	}
	base = base.Clone()
	base.TLSClientConfig = access.tls
	base.MaxIdleConnsPerHost = 16
	warnOnce(ctx, cfg, access)

	g := &gate{next: base, count: m.count}
	l.http = http.Client{Transport: g, Timeout: callTime}
	provider, err := l.authenticate(ctx, access)
	if err != nil {
		return nil, err
	}
	project, err := projectOf(provider)
	if err != nil {
		return nil, err
	}
	provider.RetryFunc = repeatReads
	provider.ReauthFunc = func(ctx context.Context) error { return l.renew(ctx, provider) }
	neutron, err := openstack.NewNetworkV2(provider, access.endpoint)
	if err != nil {
		return nil, translate("find Neutron in the catalog", err)
	}
	keystone, err := openstack.NewIdentityV3(provider, access.endpoint)
	if err != nil {
		keystone = nil // the catalog does not have it: projects have no names
	}
	c := &Cloud{
		api: api{
			neutron: neutron, keystone: keystone, metrics: m,
			tag: "fairlead:cluster=" + cfg.Cluster, project: project,
		},
		gate: g,
		bulk: make(chan struct{}, 1),
	}
	c.Routers, c.Groups, c.Bindings = &Routers{&c.api}, &Groups{&c.api}, &Bindings{&c.api}
	return c, nil
}

// Project is the ID of the project of the credentials.
func (c *Cloud) Project() string { return c.api.project }

// Deferred returns the time until the cloud may be called again, 0 if now.
func (c *Cloud) Deferred() time.Duration { return c.gate.left() }
