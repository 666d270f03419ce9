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

// Options configures the installation for the container runtime.
type Options struct {
	// PluginSource is the path of the plugin, which is copied into the directory BinDir.
	// The network configuration is written into the directory ConfDir.
	PluginSource, BinDir, ConfDir string
	// Names are the file names of the installed plugin. If PluginName is not among them,
	// another program serves the default network, and no network configuration is
	// written.
	Names []string
}

const (
	// PluginName is the name of the plugin in BinDir, and its type in the network
	// configuration. It never changes: a runtime chooses the plugin for a DEL by the
	// configuration at that time, not at the time of the ADD.
	PluginName = "fairlead"
	// ConflistName is the name of the network configuration in ConfDir.
	ConflistName = "10-fairlead.conflist"
)

// conflist returns the network configuration. Only the socket in it varies: runtimes read
// it again after every change, and pause all requests meanwhile.
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
		// Runtimes before CNI 1.1 fail on a cniVersion of 1.1.0. Newer runtimes
		// take the highest of cniVersions.
		CNIVersion:  "1.0.0",
		CNIVersions: []string{"0.4.0", "1.0.0", "1.1.0"},
		Name:        "fairlead",
		// A runtime passes only the capabilities that are declared here, and drops
		// the others without a message.
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

// Plugin copies the plugin from the path source into the directory binDir, under each of
// its names.
func Plugin(source, binDir string, names []string) error {
	raw, err := os.ReadFile(source)
	if err != nil {
		return fmt.Errorf("install the CNI plugin: cni.pluginSource: %w", err)
	}
	for _, name := range names {
		if _, err := replaceFile(filepath.Join(binDir, name), raw, 0o755); err != nil {
			return fmt.Errorf("install the CNI plugin: %w", err)
		}
	}
	return nil
}

// Installed reports whether BinDir has a file for each name of the plugin. It does not
// read the files.
func (i *Options) Installed() bool {
	for _, name := range i.Names {
		if _, err := os.Stat(filepath.Join(i.BinDir, name)); errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	return true
}

// Conflist writes the network configuration into the directory confDir, so that the runtime
// uses the plugin. It reports whether the file was missing or had another content.
func Conflist(confDir, socket string) (written bool, err error) {
	raw, err := conflist(socket)
	if err != nil {
		return false, err
	}
	written, err = replaceFile(filepath.Join(confDir, ConflistName), raw, 0o600)
	if err != nil {
		return false, fmt.Errorf("install the network configuration: %w", err)
	}
	return written, nil
}

// replaceFile replaces the content of a file atomically, and reports whether it did. It does
// not touch a file that has the content and the mode already. The new file is made in the
// same directory, under a name that no runtime takes for a configuration, and renamed:
// containerd overlooks a file that is moved in from another directory, and a copy over a
// running program fails.
func replaceFile(path string, content []byte, mode os.FileMode) (replaced bool, err error) {
	dir := filepath.Dir(path)
	if err := removeLeftovers(dir); err != nil {
		return false, err
	}
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
		return false, setMode(path, mode)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return false, err
	}
	temp, err := os.CreateTemp(dir, tempPattern)
	if err != nil {
		return false, err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temp.Name())
		}
	}()
	_, err = temp.Write(content)
	err = errors.Join(err, temp.Chmod(mode), temp.Sync(), temp.Close())
	if err != nil {
		return false, err
	}
	if err := os.Rename(temp.Name(), path); err != nil {
		return false, err
	}
	return true, syncDir(dir)
}

const (
	tempPattern = ".fairlead-*"
	// tempAge is the age from which an unfinished file counts as left by a killed
	// daemon.
	tempAge = time.Minute
)

// removeLeftovers removes unfinished files that are older than tempAge.
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

// setMode changes the mode of a file only if it differs: runtimes watch these directories,
// and CRI-O runs every plugin after each event.
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

// Uninstall removes the network configuration and then the plugin. It returns the paths
// that it removed. A missing file is no error.
func Uninstall(binDir, confDir string, names []string) (removed []string, err error) {
	paths := []string{filepath.Join(confDir, ConflistName)}
	for _, name := range names {
		paths = append(paths, filepath.Join(binDir, name))
	}
	return removeFiles(paths...)
}

// removeFiles returns the paths that it removed. A missing file is no error.
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
