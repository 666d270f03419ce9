// Package config holds one configuration struct per program: decoded strictly,
// defaulted, and validated with every error and its field path at once. Nobody
// else reads files or the environment for configuration.
package config

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"

	"sigs.k8s.io/yaml"
)

// Load decodes a YAML file into a struct that already holds its defaults. An
// unknown or repeated field is an error that names it. An empty path leaves
// the defaults.
func Load(path string, into any) error {
	if path == "" {
		return nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	if err := yaml.UnmarshalStrict(raw, into); err != nil {
		return fmt.Errorf("configuration %s: %w", path, err)
	}
	return nil
}

// Identity makes a name for this process among its replicas, another one with each
// call: the host's name and the process ID, for people, and a random part. Without it
// two replicas would hold one Lease, for in a container the process ID is 1, and the
// host's name is the node's: that of the replica before, or of another node when all
// are called localhost.
func Identity() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("read the host name: %w", err)
	}
	return fmt.Sprintf("%s_%d_%s", host, os.Getpid(), rand.Text()[:8]), nil
}

// PodAddress is the address of the pod that this process is in, as the manifest puts
// it into the environment; empty outside of one.
func PodAddress() string { return os.Getenv("POD_IP") }

// invalid collects what is wrong with a configuration.
type invalid struct{ errs []error }

func (v *invalid) check(ok bool, field string, value any, want string) {
	if !ok {
		v.errs = append(v.errs, fmt.Errorf("%s: %v: %s", field, quote(value), want))
	}
}

func (v *invalid) err() error { return errors.Join(v.errs...) }

func quote(value any) any {
	if s, ok := value.(string); ok {
		return fmt.Sprintf("%q", s)
	}
	return value
}
