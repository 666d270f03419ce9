package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/cniproto"
)

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

// installPlugin puts the plugin in the runtime's directory of plugins, under each
// of its names.
func installPlugin(source, binDir string, names []string) error {
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

// there tells whether the plugin has all its names, without reading it.
func (i *Install) there() bool {
	for _, name := range i.Names {
		if _, err := os.Stat(filepath.Join(i.BinDir, name)); errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	return true
}

// installConflist tells the runtime to use the plugin.
func installConflist(confDir, socket string) error {
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

// Lock is held by the one daemon that works with a state directory.
type Lock struct{ file *os.File }

// ErrLocked says that another process holds the lock.
var ErrLocked = errors.New("another fairlead-node works with this state directory")

// TryLock takes the lock of a state directory, which it makes if need be. It is
// ErrLocked when another process has it.
func TryLock(stateDir string) (*Lock, error) {
	f, err := openLock(stateDir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: %w", stateDir, ErrLocked)
		}
		return nil, fmt.Errorf("lock %s: %w", stateDir, err)
	}
	return &Lock{file: f}, nil
}

// WaitLock waits until the lock of a state directory is free: the daemon
// before, in an upgrade, finishes what it is doing.
func WaitLock(stateDir string) (*Lock, error) {
	f, err := openLock(stateDir)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err == nil {
			return &Lock{file: f}, nil
		}
		if !errors.Is(err, unix.EINTR) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", stateDir, err)
		}
	}
}

func openLock(stateDir string) (*os.File, error) {
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(stateDir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the state directory: %w", err)
	}
	return f, nil
}

// Unlock lets the next one work.
func (l *Lock) Unlock() error { return l.file.Close() }

// RemoveState removes everything that a daemon keeps in its state directory and
// beside its socket, and returns the paths that were removed. The caller holds
// the lock.
func RemoveState(stateDir, socket string) (removed []string, err error) {
	beside := filepath.Dir(socket)
	for _, dir := range []string{filepath.Join(stateDir, recordsDir), filepath.Join(stateDir, addressesDir), filepath.Join(beside, cniproto.SpoolDir)} {
		if _, e := os.Stat(dir); errors.Is(e, fs.ErrNotExist) {
			continue
		}
		if e := os.RemoveAll(dir); e != nil {
			err = errors.Join(err, e)
			continue
		}
		removed = append(removed, dir)
	}
	files, e := removeFiles(socket, filepath.Join(beside, cniproto.HeartbeatFile), filepath.Join(stateDir, lockFile))
	removed, err = append(removed, files...), errors.Join(err, e)
	// Others may keep something there.
	for _, dir := range []string{beside, stateDir} {
		if os.Remove(dir) == nil {
			removed = append(removed, dir)
		}
	}
	return removed, err
}
