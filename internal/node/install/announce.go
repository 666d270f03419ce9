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

// Reasons of the condition Announced if it is false.
const (
	// ReasonNotInstalled means that the network configuration cannot be written.
	ReasonNotInstalled = "NotInstalled"
	// reasonShadowed means that other configurations come before it.
	reasonShadowed = "Shadowed"
)

// maxProblems is the number of problems in the message of the condition.
const maxProblems = 8

// MaxForeign is the largest network configuration of another program that is read, in
// bytes.
const MaxForeign = 1 << 20

// Announce writes the network configuration. It returns the condition Announced, without
// its type: whether the runtime will use the configuration. It also reports whether the
// configuration was missing or changed.
func Announce(ctx context.Context, confDir, socket string) (announced metav1.Condition, written bool) {
	log := logr.FromContextOrDiscard(ctx)
	written, err := Conflist(confDir, socket)
	if err != nil {
		log.Error(err, "the network configuration was not installed, will be tried again")
		return metav1.Condition{Status: metav1.ConditionFalse, Reason: ReasonNotInstalled, Message: err.Error()}, false
	}
	if written {
		log.Info("pods can be served, the network configuration was installed", "conflist", filepath.Join(confDir, ConflistName))
	}
	before, err := foreign(confDir)
	if err != nil {
		before = append(before, err.Error())
	}
	if len(before) == 0 {
		return metav1.Condition{
			Status: metav1.ConditionTrue, Reason: v1alpha1.ConditionAnnounced, Message: "the container runtime finds " + ConflistName + " first",
		}, written
	}
	return metav1.Condition{
		Status: metav1.ConditionFalse, Reason: reasonShadowed,
		Message: fmt.Sprintf("%s: %s", confDir, run.Few(before, maxProblems)),
	}, written
}

// foreign returns a message for each network configuration that sorts before ours and
// keeps the runtime from using Fairlead. A configuration that leads to Fairlead, as that of
// Multus does, has no message.
func foreign(confDir string) (before []string, err error) {
	entries, err := os.ReadDir(confDir) // in the order in which runtimes search
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Name() >= ConflistName {
			break
		}
		// Runtimes ignore files with other extensions (libcni, ConfFiles).
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

// errNoFile means that a path is not a file that a runtime reads.
var errNoFile = errors.New("not a file")

// readForeign reads a network configuration of at most MaxForeign bytes.
func readForeign(path string) ([]byte, error) {
	info, err := os.Stat(path) // follows links, as a runtime does
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

// Usable reports whether a network configuration is valid JSON and names a plugin.
func Usable(raw []byte) bool {
	var config struct {
		Type    string            `json:"type"`
		Plugins []json.RawMessage `json:"plugins"`
	}
	return json.Unmarshal(raw, &config) == nil && (config.Type != "" || len(config.Plugins) > 0)
}

// LeadsHere reports whether a network configuration names our plugin or our configuration.
// The runtime then reaches Fairlead by way of the program that comes first.
func LeadsHere(raw []byte) bool {
	var config any
	return json.Unmarshal(raw, &config) == nil && namesUs(config)
}

// namesUs searches a decoded JSON value.
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
