package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/libcni"
	cnitypes "github.com/containernetworking/cni/pkg/types"
)

// delegate passes a verb on to each delegate: CNI_IFNAME is the interface of the first,
// net1, net2, ... those of the others. The answer is that of the first.
//
// The delegates of an ADD are kept in a file of the cache's directory, whose name is the
// container's ID. The DEL takes them from there, whatever the configuration names by then,
// and removes the file even if a delegate fails. Without the file a DEL does nothing. So
// does Multus.
func (c config) delegate(ctx context.Context, verb string, env func(string) string, stdout io.Writer) error {
	cni, conf := c.runtime(env)
	kept := filepath.Join(c.CNIDir, conf.ContainerID)
	switch verb {
	case "ADD":
		raw, err := json.Marshal(c.Delegates)
		if err == nil {
			err = os.MkdirAll(c.CNIDir, 0o700)
		}
		if err == nil {
			err = os.WriteFile(kept, raw, 0o600)
		}
		if err != nil {
			return fmt.Errorf("keep the delegates: %w", err)
		}
		return c.add(ctx, cni, conf, stdout)
	case "DEL":
		raw, err := os.ReadFile(kept)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err == nil {
			err = json.Unmarshal(raw, &c.Delegates)
		}
		if err != nil {
			return fmt.Errorf("delegates of container %s: %w", conf.ContainerID, err)
		}
		return errors.Join(c.del(ctx, cni, conf), os.Remove(kept))
	case "CHECK":
		return c.each(conf, func(list *libcni.NetworkConfigList, conf *libcni.RuntimeConf) error {
			return cni.CheckNetworkList(ctx, list, conf)
		})
	default:
		return fmt.Errorf("CNI_COMMAND: %q: must be ADD, CHECK, DEL or VERSION where delegates are listed", verb)
	}
}

// add calls ADD of each delegate, and DEL of all if one fails.
func (c config) add(ctx context.Context, cni *libcni.CNIConfig, conf *libcni.RuntimeConf, stdout io.Writer) error {
	var first cnitypes.Result
	err := c.each(conf, func(list *libcni.NetworkConfigList, conf *libcni.RuntimeConf) error {
		res, err := cni.AddNetworkList(ctx, list, conf)
		if first == nil {
			first = res
		}
		return err
	})
	if err != nil {
		return errors.Join(err, c.del(ctx, cni, conf))
	}
	if first, err = first.GetAsVersion(c.CNIVersion); err != nil {
		return err
	}
	return first.PrintTo(stdout)
}

// del calls DEL of each delegate, the last first, and continues after an error.
func (c config) del(ctx context.Context, cni *libcni.CNIConfig, conf *libcni.RuntimeConf) error {
	var calls []func() error
	err := c.each(conf, func(list *libcni.NetworkConfigList, conf *libcni.RuntimeConf) error {
		calls = append(calls, func() error { return cni.DelNetworkList(ctx, list, conf) })
		return nil
	})
	errs := []error{err}
	for _, call := range slices.Backward(calls) {
		errs = append(errs, call())
	}
	return errors.Join(errs...)
}

// each calls do for each delegate, with the name of its interface.
func (c config) each(conf *libcni.RuntimeConf, do func(*libcni.NetworkConfigList, *libcni.RuntimeConf) error) error {
	for i, raw := range c.Delegates {
		list, err := libcni.NetworkConfFromBytes(raw)
		if err != nil {
			return fmt.Errorf("delegates[%d]: %w", i, err)
		}
		own := *conf
		if i > 0 {
			own.IfName = fmt.Sprintf("net%d", i)
		}
		if err := do(list, &own); err != nil {
			return fmt.Errorf("delegates[%d], interface %s: %w", i, own.IfName, err)
		}
	}
	return nil
}
