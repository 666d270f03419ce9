package plug

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
)

// Executor executes CNI plugins.
type Executor interface {
	// Validate returns all errors of a list of plugins, without executing any.
	Validate(l v1alpha1.PluginList) error
	// Add executes ADD of the plugins for an interface, in order, and returns the last
	// result, of CNI version 1.1.0. After an error Del removes what they have made.
	Add(ctx context.Context, i Interface, m Made) (json.RawMessage, error)
	// Del executes DEL of the plugins, the last one first. It executes all of them, and
	// returns all errors.
	Del(ctx context.Context, m Made) error
	// Check executes CHECK of the plugins. The error describes the difference.
	Check(ctx context.Context, m Made) error
}

// Plugins are the CNI plugins that are executed for an interface: those that make it, or
// those of its chain. It has the whole input of their DEL and CHECK.
type Plugins struct {
	List v1alpha1.PluginList `json:"list"`
	// Args is CNI_ARGS.
	Args string `json:"args,omitempty"`
	// Result is the result of the ADD, of CNI version 1.1.0. It is empty before.
	Result json.RawMessage `json:"result,omitempty"`
}

// pluginsOf returns the plugins of an interface, nil if it has none.
func pluginsOf(i Interface) *Plugins {
	list := i.Chain
	if i.Binding.Delegate != nil {
		list = i.Binding.Delegate
	}
	if list == nil {
		return nil
	}
	return &Plugins{List: *list, Args: i.Args}
}

// Executing returns kinds whose interfaces may have plugins, and which have the kind
// KindDelegate.
func (k *Kinds) Executing(x Executor) *Kinds {
	with := NewKinds(k.sockets, k.nameOf, map[string]Kind{KindDelegate: delegate{}})
	maps.Copy(with.byName, k.byName)
	with.plugins = x
	return with
}

// validatePlugins returns all errors of the plugins of an interface. Errors:
// link.ErrInvalid.
func (k *Kinds) validatePlugins(i Interface) error {
	p := pluginsOf(i)
	switch {
	case p == nil:
		return nil
	case k.plugins == nil:
		return link.Invalid("plugins of "+i.Name, errors.New("must be empty: no plugins are executed here"))
	case i.Chain != nil && i.Binding.AddressOnly != nil:
		return link.Invalid("chain of "+i.Name, errors.New("must be empty: another plugin makes the interface"))
	case i.Chain != nil && i.Binding.Delegate != nil:
		return link.Invalid("chain of "+i.Name, errors.New("must be empty: binding.delegate has the whole list"))
	}
	return link.Invalid("plugins of "+i.Name, k.plugins.Validate(p.List))
}

// Execute executes the plugins of an interface after Make, and returns their result, nil
// if the interface has none. After an error the interface has to be removed: a DEL may
// take as long as the ADD.
func (k *Kinds) Execute(ctx context.Context, i Interface, m Made) (json.RawMessage, error) {
	if m.Plugins == nil {
		return nil, nil
	}
	if k.plugins == nil {
		return nil, k.validatePlugins(i)
	}
	return k.plugins.Add(ctx, i, m)
}

// deleted executes the DEL of the plugins of an interface. It is an error if this build
// executes none: the interface may still exist.
func (k *Kinds) deleted(ctx context.Context, m Made) error {
	switch {
	case m.Plugins == nil:
		return nil
	case k.plugins == nil:
		return fmt.Errorf("removing %s of container %s: no plugins are executed here, and plugins have made it", m.Name, m.ContainerID)
	}
	return k.plugins.Del(ctx, m)
}

// checked executes the CHECK of the plugins of an interface and returns the differences.
func (k *Kinds) checked(ctx context.Context, m Made) []string {
	if m.Plugins == nil || k.plugins == nil {
		return nil
	}
	if err := k.plugins.Check(ctx, m); err != nil {
		return []string{fmt.Sprintf("interface %s: %v", m.Name, err)}
	}
	return nil
}

// delegate is the kind of interfaces that executed plugins make. It makes nothing itself.
type delegate struct{}

func (delegate) Validate(i Interface) error {
	err := i.validateAddresses()
	if i.Binding.Delegate == nil {
		err = errors.Join(err, link.Invalid("binding", errors.New("must be delegate, with a list of plugins")))
	}
	if i.Bandwidth != nil {
		err = errors.Join(err, link.Invalid("bandwidth", errors.New("must not be set: plugins make the interface, and limit it")))
	}
	return err
}

func (delegate) Plan(at link.Place, i Interface) Made {
	return Made{Kind: KindDelegate, ContainerID: i.ContainerID, Name: i.Name, Namespace: at}
}

// Make refuses an interface whose name is taken. Plugins would fail, and their DEL would
// remove the interface of others.
func (d delegate) Make(ctx context.Context, ns *link.Namespace, i Interface) error {
	if err := errors.Join(d.Validate(i), ctx.Err()); err != nil {
		return err
	}
	return ns.NameIsFree(i.Name)
}

func (delegate) Remove(context.Context, Made) error { return nil }

// Gone is true if the namespace has ended. The DEL of the plugins is no part of it: the
// record ends only after it.
func (delegate) Gone(_ context.Context, m Made) (bool, error) { return m.Namespace.Gone(), nil }

func (delegate) Differences(context.Context, Made, Inspected) ([]string, error) { return nil, nil }
