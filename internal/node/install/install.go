package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Options says what is installed for the container runtime.
type Options struct {
	// PluginSource is copied into BinDir, the configuration written into ConfDir.
	PluginSource, BinDir, ConfDir string
	// Names under which the plugin is installed. Without PluginName the default
	// network is somebody else's, and no configuration of it is written.
	Names []string
}

const (
	// PluginName is the plugin's file in the runtime's directory of plugins,
	// and its type in the network configuration. Neither ever changes: a DEL
	// is given to what the configuration says then, not at the time of ADD.
	PluginName = "fairlead"
	// ConflistName is the file in the runtime's directory of configurations.
	ConflistName = "10-fairlead.conflist"
)

// conflist is the network configuration. Its content is constant, but for the
// socket: runtimes read it again on every change, and pause everything for it.
func conflist(socket string) ([]byte, error) {
	type plugin struct {
		Type         string          `json:"type"`
		Capabilities map[string]bool `json:"capabilities"`
		Socket       string          `json:"socket"`
	}
	raw, err := json.MarshalIndent(struct {
		CNIVersion  string   `json:"cniVersion"`
		CNIVersions []string `json:"cniVersions"`
		Name        string   `json:"name"`
		Plugins     []plugin `json:"plugins"`
	}{
		// Runtimes before CNI 1.1 fail on a cniVersion of 1.1.0; the newer ones
		// take the highest of cniVersions.
		CNIVersion:  "1.0.0",
		CNIVersions: []string{"0.4.0", "1.0.0", "1.1.0"},
		Name:        "fairlead",
		// A runtime passes only what is declared, and tells nobody of the rest.
		Plugins: []plugin{{Type: PluginName, Capabilities: map[string]bool{
			"portMappings": true, "bandwidth": true, "ips": true, "mac": true, "dns": true,
			"cgroupPath": true, "io.kubernetes.cri.pod-annotations": true,
		}, Socket: socket}},
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the network configuration: %w", err)
	}
	return append(raw, '\n'), nil
}

// Plugin puts the plugin in the runtime's directory of plugins, under each
// of its names.
func Plugin(source, binDir string, names []string) error {
	raw, err := os.ReadFile(source)
	if err != nil {
		return fmt.Errorf("install the CNI plugin: cni.pluginSource: %w", err)
	}
	for _, name := range names {
		if err := replaceFile(filepath.Join(binDir, name), raw, 0o755); err != nil {
			return fmt.Errorf("install the CNI plugin: %w", err)
		}
	}
	return nil
}

// Installed tells whether the plugin has all its names, without reading it.
func (i *Options) Installed() bool {
	for _, name := range i.Names {
		if _, err := os.Stat(filepath.Join(i.BinDir, name)); errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	return true
}

// Conflist tells the runtime to use the plugin.
func Conflist(confDir, socket string) error {
	raw, err := conflist(socket)
	if err != nil {
		return err
	}
	if err := replaceFile(filepath.Join(confDir, ConflistName), raw, 0o600); err != nil {
		return fmt.Errorf("install the network configuration: %w", err)
	}
	return nil
}

// replaceFile makes a file have that content, whole or not at all, and leaves it
// alone when it has. The new file is made in the same directory: one that is
// moved in from elsewhere is overlooked by containerd, and one that is copied
// over a running program fails. Its name there is none that a runtime takes for a
// configuration.
func replaceFile(path string, content []byte, mode os.FileMode) (err error) {
	dir := filepath.Dir(path)
	if err := removeLeftovers(dir); err != nil {
		return err
	}
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
		return setMode(path, mode)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	temp, err := os.CreateTemp(dir, tempPattern)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temp.Name())
		}
	}()
	_, err = temp.Write(content)
	err = errors.Join(err, temp.Chmod(mode), temp.Sync(), temp.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(temp.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

const (
	tempPattern = ".fairlead-*"
	// tempAge is how old an unfinished file must be to be what a daemon left that
	// was killed.
	tempAge = time.Minute
)

// removeLeftovers removes files that were never finished.
func removeLeftovers(dir string) error {
	paths, err := filepath.Glob(filepath.Join(dir, tempPattern))
	if err != nil {
		return err
	}
	for _, path := range paths {
		info, err := os.Lstat(path)
		if err != nil || !info.Mode().IsRegular() || time.Since(info.ModTime()) < tempAge {
			continue
		}
		if _, err := removeFiles(path); err != nil {
			return err
		}
	}
	return nil
}

// setMode changes a mode only when it is another: runtimes watch these
// directories, and CRI-O runs every plugin after each event.
func setMode(path string, mode os.FileMode) error {
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() == mode {
		return err
	}
	return os.Chmod(path, mode)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Uninstall removes the network configuration and then the plugin, and returns
// the paths that were removed.
func Uninstall(binDir, confDir string, names []string) (removed []string, err error) {
	paths := []string{filepath.Join(confDir, ConflistName)}
	for _, name := range names {
		paths = append(paths, filepath.Join(binDir, name))
	}
	return removeFiles(paths...)
}

func removeFiles(paths ...string) (removed []string, err error) {
	for _, path := range paths {
		switch e := os.Remove(path); {
		case e == nil:
			removed = append(removed, path)
		case !errors.Is(e, fs.ErrNotExist):
			err = errors.Join(err, e)
		}
	}
	return removed, err
}
