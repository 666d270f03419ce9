package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Reasons of the condition Announced, apart from that of its name.
const (
	// reasonNotInstalled: the network configuration cannot be written.
	reasonNotInstalled = "NotInstalled"
	// reasonShadowed: other configurations come before it.
	reasonShadowed = "Shadowed"
)

// maxForeign bounds what is read of another network's configuration, in bytes.
const maxForeign = 1 << 20

// announce tells the runtime of the network when the first ADD can be served, and
// looks every minute whether it still knows. The configuration stays when the
// daemon ends: without it a runtime cannot stop pods. The plugin that plugs nothing
// is no network: it would take the place of the one that is.
func (d *Daemon) announce(ctx context.Context) error {
	i, v := d.config.Install, d.verbs
	if i == nil || v == nil {
		return nil
	}
	if !slices.Contains(i.Names, PluginName) {
		v.host.setAnnounced(metav1.Condition{}) // it was, in another configuration
		return nil
	}
	select {
	case <-v.registry.ready:
	case <-ctx.Done():
		return nil
	}
	_, err := v.host.await(ctx)
	if err = errors.Join(err, v.firewall.ready(ctx)); err != nil {
		return nil // they wait until ctx ends
	}
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		if v.look() == nil { // a runtime that has no configuration sends no ADD meanwhile
			v.host.setAnnounced(announced(ctx, i.ConfDir, d.config.Socket))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// announced puts the network configuration where it is to be, and says whether the
// runtime will use it.
func announced(ctx context.Context, confDir, socket string) metav1.Condition {
	log := logr.FromContextOrDiscard(ctx)
	path := filepath.Join(confDir, ConflistName)
	_, missing := os.Stat(path)
	if err := installConflist(confDir, socket); err != nil {
		log.Error(err, "the runtime cannot be told of the network, will be tried again")
		return metav1.Condition{Status: metav1.ConditionFalse, Reason: reasonNotInstalled, Message: err.Error()}
	}
	if missing != nil {
		log.Info("pods can be served, the runtime is told", "conflist", path)
	}
	before, err := foreign(confDir)
	if err != nil {
		before = append(before, err.Error())
	}
	if len(before) == 0 {
		return metav1.Condition{
			Status: metav1.ConditionTrue, Reason: v1alpha1.ConditionAnnounced, Message: "the container runtime finds " + ConflistName + " first",
		}
	}
	if n := len(before); n > maxProblems {
		before = append(before[:maxProblems], fmt.Sprintf("and %d more", n-maxProblems))
	}
	return metav1.Condition{
		Status: metav1.ConditionFalse, Reason: reasonShadowed,
		Message: fmt.Sprintf("%s: %s", confDir, strings.Join(before, "; ")),
	}
}

// foreign says of each network configuration that sorts before ours, and does not
// lead to us as that of Multus does, what a runtime makes of it.
func foreign(confDir string) (before []string, err error) {
	entries, err := os.ReadDir(confDir) // in the order in which runtimes look
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Name() >= ConflistName {
			break
		}
		// What else there is runtimes pass over (libcni, ConfFiles).
		if !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) {
			continue
		}
		raw, err := readForeign(filepath.Join(confDir, e.Name()))
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, errNoFile):
		case err != nil || !usable(raw):
			before = append(before, e.Name()+" comes before "+ConflistName+" and is not valid: containerd stops there")
		case !leadsHere(raw):
			before = append(before, e.Name()+" comes before "+ConflistName+": the container runtime uses it instead")
		}
	}
	return before, nil
}

// errNoFile says that something is no file that a runtime would read.
var errNoFile = errors.New("not a file")

func readForeign(path string) ([]byte, error) {
	info, err := os.Stat(path) // which follows links, as a runtime does
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errNoFile
	case info.Size() > maxForeign:
		return nil, fmt.Errorf("%s has %d bytes", path, info.Size())
	}
	return os.ReadFile(path)
}

// usable tells whether a runtime finds a plugin in a network configuration.
func usable(raw []byte) bool {
	var config struct {
		Type    string            `json:"type"`
		Plugins []json.RawMessage `json:"plugins"`
	}
	return json.Unmarshal(raw, &config) == nil && (config.Type != "" || len(config.Plugins) > 0)
}

// leadsHere tells whether a network configuration names our plugin or our
// configuration: who comes first then hands on to us.
func leadsHere(raw []byte) bool {
	var config any
	return json.Unmarshal(raw, &config) == nil && namesUs(config)
}

func namesUs(v any) bool {
	switch v := v.(type) {
	case string:
		return v == PluginName || filepath.Base(v) == ConflistName
	case []any:
		return slices.ContainsFunc(v, namesUs)
	case map[string]any:
		for _, x := range v {
			if namesUs(x) {
				return true
			}
		}
	}
	return false
}
