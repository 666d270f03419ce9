// Package report shows people how OpenStack serves the cluster: in the status of a Cloud, in
// metrics and in events. It changes nothing in the cloud but for the port on which it tries
// the abilities of the credentials.
package report

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// Config of a reporter.
type Config struct {
	// Cluster is the name of the cluster in the cloud, and of the Cloud.
	Cluster string
	// DeviceOwner of the ports of pods.
	DeviceOwner string
	// Recognize reports whether a port is that of a pod of the cluster. odd is why garbage
	// collection never releases such a port; empty if it may.
	Recognize func(c *cloud.Cloud, p cloud.Port) (mine bool, odd string)
	// Network is the ID or name of the one on which abilities are tried; empty for none.
	Network string
	// Host returns the host of the agent of a node, to try a binding; empty if it knows none.
	Host func(ctx context.Context) (string, error)
	// Client writes.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Events gets a warning when a quota is nearly used up.
	Events events.EventRecorder
	// Registry gets the gauges.
	Registry prometheus.Registerer
	// Interval between two looks at the cloud.
	Interval time.Duration
}

// Reporter writes the status of a Cloud.
type Reporter struct {
	cfg    Config
	gauges *gauges
	news   chan struct{}

	mu    sync.Mutex
	cloud *cloud.Cloud
	// err is why there is no connection.
	err error
	// waiting are the interfaces that the next pass of garbage collection releases.
	waiting []driver.Ref
}

// New returns a reporter.
func New(cfg Config) (*Reporter, error) {
	g, err := newGauges(cfg.Registry)
	return &Reporter{cfg: cfg, gauges: g, news: make(chan struct{}, 1)}, err
}

// Connected gets the result of a try to connect.
func (r *Reporter) Connected(c *cloud.Cloud, err error) {
	r.mu.Lock()
	same := r.err != nil && err != nil && r.err.Error() == err.Error()
	r.cloud, r.err = c, err
	r.mu.Unlock()
	if !same {
		r.wake()
	}
}

// Waiting gets the interfaces that the next pass of garbage collection releases.
func (r *Reporter) Waiting(refs []driver.Ref) {
	r.mu.Lock()
	r.waiting = refs
	r.mu.Unlock()
	r.wake()
}

func (r *Reporter) wake() {
	select {
	case r.news <- struct{}{}:
	default:
	}
}

// Run looks at the cloud at once, then at each interval and after each news, until ctx ends.
// It runs on the leader, and returns nil.
func (r *Reporter) Run(ctx context.Context) error {
	defer r.gauges.reset()
	tick := time.NewTicker(r.cfg.Interval)
	defer tick.Stop()
	var tried *cloud.Cloud // the connection on which abilities were tried
	for {
		s, c := r.look(ctx)
		if c != nil && c != tried && r.try(ctx, c, &s) {
			tried = c
		}
		r.gauges.set(s)
		if err := r.write(ctx, s); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "cannot write how OpenStack serves the cluster")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.news:
		case <-tick.C:
		}
	}
}

// look returns the state of the cloud, and the cloud if it answers.
func (r *Reporter) look(ctx context.Context) (state, *cloud.Cloud) {
	r.mu.Lock()
	c, err, waiting := r.cloud, r.err, r.waiting
	r.mu.Unlock()
	if c == nil {
		return state{err: err}, nil
	}
	s := state{project: c.Project()}
	// A cloud drops tags: the list by owner has the ports without one, and the list by tag
	// those of other owners, such as subports.
	tagged, err := c.Ports(ctx, cloud.PortQuery{Tagged: true})
	if err != nil {
		return state{project: s.project, err: err}, nil
	}
	owned, err := c.Ports(ctx, cloud.PortQuery{DeviceOwner: r.cfg.DeviceOwner})
	if err != nil {
		return state{project: s.project, err: err}, nil
	}
	s.classify(tagged, owned, waiting, func(p cloud.Port) (bool, string) { return r.cfg.Recognize(c, p) })
	s.quotas, s.quotaErr = c.Quotas(ctx, "")
	return s, c
}

// try tries the abilities of the credentials, and reports whether the result is known.
func (r *Reporter) try(ctx context.Context, c *cloud.Cloud, s *state) bool {
	if r.cfg.Network == "" {
		return true
	}
	host, err := r.cfg.Host(ctx)
	if err == nil && host == "" {
		return false // there is no node yet
	}
	var network cloud.Network
	if err == nil {
		network, err = c.Network(ctx, r.cfg.Network)
	}
	if err == nil {
		s.abilities, err = c.Capabilities(ctx, network.ID, host)
	}
	if err != nil {
		log.FromContext(ctx).Info("the abilities of the credentials could not be tried, which is tried again", "error", err.Error())
	}
	return err == nil
}

// write writes the status of the Cloud, which it creates if there is none.
func (r *Reporter) write(ctx context.Context, s state) error {
	o := &v1alpha1.Cloud{}
	err := r.cfg.Live.Get(ctx, client.ObjectKey{Name: r.cfg.Cluster}, o)
	if apierrors.IsNotFound(err) {
		o = &v1alpha1.Cloud{ObjectMeta: metav1.ObjectMeta{Name: r.cfg.Cluster}}
		err = r.cfg.Client.Create(ctx, o)
	}
	if err != nil {
		return fmt.Errorf("read or create Cloud %s: %w", r.cfg.Cluster, err)
	}
	before := o.DeepCopy()
	s.into(&o.Status, metav1.Now())
	if err := r.cfg.Client.Status().Patch(ctx, o, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("write the status of Cloud %s: %w", r.cfg.Cluster, err)
	}
	now := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionQuotaLeft)
	was := meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConditionQuotaLeft)
	if r.cfg.Events != nil && now != nil && now.Status == metav1.ConditionFalse && (was == nil || was.Status != now.Status) {
		r.cfg.Events.Eventf(o, nil, corev1.EventTypeWarning, "QuotaLow", "Check", "%s", now.Message)
	}
	return nil
}
