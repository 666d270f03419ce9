package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/containernetworking/cni/libcni"
	"github.com/fsnotify/fsnotify"
	"github.com/go-logr/logr"
)

// errNotInitialized is containerd's error on a node without a configuration.
var errNotInitialized = errors.New("cni plugin not initialized")

// loadConf loads the network of a node as containerd does: the first file in lexical
// order that ends in .conf, .conflist or .json. If it is broken, no other file is tried.
func loadConf(dir string) (*libcni.NetworkConfigList, error) {
	files, err := libcni.ConfFiles(dir, []string{".conf", ".conflist", ".json"})
	if err != nil {
		return nil, fmt.Errorf("%w: read %s: %w", errNotInitialized, dir, err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%w: no network config in %s", errNotInitialized, dir)
	}
	slices.Sort(files)
	list, err := loadFile(files[0])
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errNotInitialized, files[0], err)
	}
	return list, nil
}

func loadFile(path string) (*libcni.NetworkConfigList, error) {
	if strings.HasSuffix(path, ".conflist") {
		list, err := libcni.NetworkConfFromFile(path)
		if err == nil && len(list.Plugins) == 0 {
			err = errors.New("it lists no plugins")
		}
		return list, err
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	conf, err := libcni.NetworkPluginConfFromBytes(raw)
	if err != nil {
		return nil, err
	}
	return libcni.ConfListFromConf(conf) //nolint:staticcheck // containerd still accepts such files
}

// conf is the present network configuration. As in containerd it is locked while a plugin
// runs: a reload waits for running plugins, and later calls wait for the reload.
type conf struct {
	dir string

	lock sync.RWMutex
	list *libcni.NetworkConfigList
	err  error
}

// use calls fn with the configuration, which does not change during the call.
func (c *conf) use(fn func(*libcni.NetworkConfigList) error) error {
	c.lock.RLock()
	defer c.lock.RUnlock()
	if c.err != nil {
		return c.err
	}
	return fn(c.list)
}

func (c *conf) load() error {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.list, c.err = loadConf(c.dir)
	return c.err
}

// watch reloads the configuration until ctx ends. Like containerd it sees a file that is
// written, renamed within the directory or removed, but not a file that is moved in from
// elsewhere.
func (c *conf) watch(ctx context.Context) error {
	log := logr.FromContextOrDiscard(ctx)
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", c.dir, err)
	}
	defer watcher.Close()
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of network configurations: %w", err)
	}
	if err := watcher.Add(c.dir); err != nil {
		return fmt.Errorf("watch %s: %w", c.dir, err)
	}
	if err := c.load(); err != nil {
		log.Info("there is no network configuration yet", "reason", err.Error())
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-watcher.Errors:
			return fmt.Errorf("watch %s: %w", c.dir, err)
		case event := <-watcher.Events:
			if event.Has(fsnotify.Chmod) || event.Has(fsnotify.Create) {
				continue
			}
			if event.Name == c.dir {
				return fmt.Errorf("watch %s: the directory was removed", c.dir)
			}
			if err := c.load(); err != nil {
				log.Info("the network configuration cannot be used", "reason", err.Error())
				continue
			}
			log.Info("network configuration loaded")
		}
	}
}
