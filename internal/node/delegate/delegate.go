package delegate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	cnitypes "github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/prometheus/client_golang/prometheus"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/netdev/kinds"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/answer"
)

// timeouts bound a verb for all plugins of a list together. They are shorter than the time
// in which the runtime's own plugin waits for the daemon (cniproto.Timeout).
var timeouts = map[string]time.Duration{
	cniproto.VerbAdd:    40 * time.Second,
	cniproto.VerbDel:    15 * time.Second,
	cniproto.VerbCheck:  4 * time.Second,
	cniproto.VerbGC:     10 * time.Second,
	cniproto.VerbStatus: 5 * time.Second,
}

// Config configures a Delegate.
type Config struct {
	// BinDir is the directory of the plugins. It is CNI_PATH.
	BinDir string
	// Socket is the daemon's CNI socket, for plugins that ask Fairlead for addresses.
	Socket string
	// Host is the network namespace that plugins are executed in; nil is that of this
	// process.
	Host *link.Namespace
	// Metrics registers the metrics.
	Metrics prometheus.Registerer
}

// Delegate executes the plugins of networks. It is a kinds.Executor.
type Delegate struct {
	config   Config
	process  process
	metrics  *metrics
	timeouts map[string]time.Duration
}

// New returns a Delegate; errors: those of the registration of the metrics.
func New(c Config) (*Delegate, error) {
	m, err := newMetrics(c.Metrics)
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return &Delegate{config: c, process: process{host: c.Host}, metrics: m, timeouts: timeouts}, nil
}

// Validate returns all errors of a list of plugins, without executing any. A plugin that is not
// installed is an error: after the ADD of another, DEL would need it.
func (d *Delegate) Validate(l v1alpha1.PluginList) error {
	list, err := parse(l)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range list.plugins {
		_, err := d.find(p.kind)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Add executes ADD of the plugins of an interface and returns the last result, of CNI
// version 1.1.0, in which the interface and its addresses are complete. The first plugin of
// a chain gets the interface as its prevResult.
func (d *Delegate) Add(ctx context.Context, i plug.Interface, m plug.Made) (raw json.RawMessage, err error) {
	ctx, done := d.begin(ctx, cniproto.VerbAdd)
	defer func() { done(err) }()
	list, err := parse(m.Plugins.List)
	if err != nil {
		return nil, err
	}
	var res *types100.Result
	if m.Kind != plug.KindDelegate {
		res = answer.Made(i, m)
	}
	for _, p := range list.plugins {
		config, err := list.config(p, with{result: res, socket: d.config.Socket, runtime: true})
		if err != nil {
			return nil, err
		}
		out, err := d.execute(ctx, p, config, environment{verb: cniproto.VerbAdd, made: m, netns: m.Namespace.Path})
		if err == nil {
			res, err = decode(out, m)
		}
		if err != nil {
			return nil, d.fails(ctx, cniproto.VerbAdd, p.kind, err)
		}
	}
	return json.Marshal(res)
}

// execute executes a plugin and returns its output.
func (d *Delegate) execute(ctx context.Context, p pluginConfig, config []byte, env environment) ([]byte, error) {
	path, err := d.find(p.kind)
	if err != nil {
		return nil, err
	}
	env.path = d.config.BinDir
	return d.process.execute(ctx, path, config, env.variables())
}

// Del executes DEL of the plugins of an interface, the last one first. It executes all of
// them and returns all errors. A plugin that is missing is an error. CNI_NETNS is empty if
// the namespace has ended.
func (d *Delegate) Del(ctx context.Context, m plug.Made) (err error) {
	ctx, done := d.begin(ctx, cniproto.VerbDel)
	defer func() { done(err) }()
	list, err := parse(m.Plugins.List)
	if err != nil {
		return err
	}
	env := environment{verb: cniproto.VerbDel, made: m, netns: m.Namespace.Path}
	if m.Namespace.Gone() {
		env.netns = ""
	}
	more := with{socket: d.config.Socket, runtime: true}
	if more.result, err = recorded(m); err != nil {
		return err
	}
	var errs []error
	for _, p := range slices.Backward(list.plugins) {
		errs = append(errs, d.run(ctx, list, p, more, env))
	}
	return errors.Join(errs...)
}

// Check executes CHECK of the plugins of an interface, in order, and returns the first
// error. Versions before 0.4.0 of CNI have no CHECK.
func (d *Delegate) Check(ctx context.Context, m plug.Made) (err error) {
	if m.Plugins.List.CNIVersion < "0.4.0" {
		return nil
	}
	ctx, done := d.begin(ctx, cniproto.VerbCheck)
	defer func() { done(err) }()
	list, err := parse(m.Plugins.List)
	if err != nil {
		return err
	}
	more := with{socket: d.config.Socket, runtime: true}
	if more.result, err = recorded(m); err != nil {
		return err
	}
	for _, p := range list.plugins {
		if err := d.run(ctx, list, p, more, environment{verb: cniproto.VerbCheck, made: m, netns: m.Namespace.Path}); err != nil {
			return err
		}
	}
	return nil
}

// GC executes GC of the plugins of a network, with the attachments that are in use. It
// executes all of them and returns all errors. Versions before 1.1.0 of CNI have no GC.
func (d *Delegate) GC(ctx context.Context, l v1alpha1.PluginList, valid []cnitypes.GCAttachment) error {
	return d.ofNetwork(ctx, cniproto.VerbGC, l, with{valid: append([]cnitypes.GCAttachment{}, valid...), socket: d.config.Socket})
}

// Status executes STATUS of the plugins of a network, and returns an error if one of them
// cannot serve an ADD. Errors: fault.ErrImpaired if a plugin answers that its pods are cut
// off, otherwise fault.ErrNotServing. Versions before 1.1.0 of CNI have no STATUS.
func (d *Delegate) Status(ctx context.Context, l v1alpha1.PluginList) error {
	err := d.ofNetwork(ctx, cniproto.VerbStatus, l, with{socket: d.config.Socket})
	if err == nil {
		return nil
	}
	kind := fault.ErrNotServing
	if own, ok := errors.AsType[*cnitypes.Error](err); ok && own.Code == cniproto.CodeLimited {
		kind = fault.ErrImpaired
	}
	return fault.Errorf(kind, "network %s: %w", l.Name, err)
}

// ofNetwork executes a verb without an attachment.
func (d *Delegate) ofNetwork(ctx context.Context, verb string, l v1alpha1.PluginList, more with) (err error) {
	if l.CNIVersion < "1.1.0" {
		return nil
	}
	ctx, done := d.begin(ctx, verb)
	defer func() { done(err) }()
	list, err := parse(l)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range list.plugins {
		errs = append(errs, d.run(ctx, list, p, more, environment{verb: verb}))
	}
	return errors.Join(errs...)
}

// run executes a plugin for a verb without a result.
func (d *Delegate) run(ctx context.Context, list *pluginList, p pluginConfig, more with, env environment) error {
	config, err := list.config(p, more)
	if err != nil {
		return err
	}
	_, err = d.execute(ctx, p, config, env)
	return d.fails(ctx, env.verb, p.kind, err)
}

// find returns the path of a plugin. Errors: errMissing, with the path.
func (d *Delegate) find(kind string) (string, error) {
	path, err := invoke.FindInPath(kind, []string{d.config.BinDir})
	if err != nil {
		return "", fmt.Errorf("%w: %s/%s: install it, or correct the type in the network's configuration", errMissing, d.config.BinDir, kind)
	}
	return path, nil
}

// errMissing means that the program of a plugin is not installed. Its text does not have
// the kernel's words for a missing file, which runtimes take for success.
var errMissing = errors.New("there is no plugin")

// fails returns an error of a plugin with its type and the verb, nil if err is nil. Errors:
// fault.ErrPlugin, also fault.ErrNotReady if the plugin asks for a retry.
func (d *Delegate) fails(ctx context.Context, verb, kind string, err error) error {
	if err == nil {
		return nil
	}
	cause := context.Cause(ctx)
	if errors.Is(cause, context.DeadlineExceeded) {
		err = fmt.Errorf("it was killed when its time was over: %w", err)
	} else if cause != nil {
		err = fmt.Errorf("it was killed: %w: %w", cause, err)
	}
	if own, ok := errors.AsType[*cnitypes.Error](err); ok && own.Code == cnitypes.ErrTryAgainLater {
		err = fmt.Errorf("%w: %w", fault.ErrNotReady, err)
	}
	return fault.Errorf(fault.ErrPlugin, "%s of plugin %s: %w", verb, kind, err)
}

// begin returns a context that ends at the deadline of a verb. done counts the outcome.
func (d *Delegate) begin(ctx context.Context, verb string) (_ context.Context, done func(error)) {
	ctx, cancel := context.WithTimeout(ctx, d.timeouts[verb])
	start := time.Now()
	return ctx, func(err error) {
		d.metrics.count(verb, start, errors.Is(context.Cause(ctx), context.DeadlineExceeded), err)
		cancel()
	}
}

var _ kinds.Executor = (*Delegate)(nil)
