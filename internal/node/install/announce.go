package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/run"
)

// Reasons of the condition Announced, apart from that of its name, and how many
// problems it tells of.
const (
	// reasonNotInstalled: the network configuration cannot be written.
	ReasonNotInstalled = "NotInstalled"
	// reasonShadowed: other configurations come before it.
	reasonShadowed = "Shadowed"

	maxTold = 8
)

// MaxForeign bounds what is read of another network's configuration, in bytes.
const MaxForeign = 1 << 20

// Announce puts the network configuration where it is to be, and says whether the
// runtime will use it.
func Announce(ctx context.Context, confDir, socket string) metav1.Condition {
	log := logr.FromContextOrDiscard(ctx)
	path := filepath.Join(confDir, ConflistName)
	_, missing := os.Stat(path)
	if err := Conflist(confDir, socket); err != nil {
		log.Error(err, "the runtime cannot be told of the network, will be tried again")
		return metav1.Condition{Status: metav1.ConditionFalse, Reason: ReasonNotInstalled, Message: err.Error()}
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
	return metav1.Condition{
		Status: metav1.ConditionFalse, Reason: reasonShadowed,
		Message: fmt.Sprintf("%s: %s", confDir, run.Few(before, maxTold)),
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
		case err != nil || !Usable(raw):
			before = append(before, e.Name()+" comes before "+ConflistName+" and is not valid: containerd stops there")
		case !LeadsHere(raw):
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
	case info.Size() > MaxForeign:
		return nil, fmt.Errorf("%s has %d bytes", path, info.Size())
	}
	return os.ReadFile(path)
}

// Usable tells whether a runtime finds a plugin in a network configuration.
func Usable(raw []byte) bool {
	var config struct {
		Type    string            `json:"type"`
		Plugins []json.RawMessage `json:"plugins"`
	}
	return json.Unmarshal(raw, &config) == nil && (config.Type != "" || len(config.Plugins) > 0)
}

// LeadsHere tells whether a network configuration names our plugin or our
// configuration: who comes first then hands on to us.
func LeadsHere(raw []byte) bool {
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
