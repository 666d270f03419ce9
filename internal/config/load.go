// Package config holds one configuration struct per program. It is decoded strictly, gets
// defaults, and is validated with all errors and their field paths at once. No other
// package reads files or the environment for configuration.
package config

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"

	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// Load decodes a YAML file into a struct that already holds its defaults, and validates it. The error
// has the path of each unknown field and of each wrong value. A field that is there twice, or
// a value of a wrong type, is an error alone. If the file's path is empty, the defaults stay.
func Load(path string, into any, validate func() error) error {
	var unknown []error
	if path != "" {
		raw, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read configuration: %w", err)
		}
		if raw, err = yaml.YAMLToJSONStrict(raw); err == nil {
			unknown, err = json.UnmarshalStrict(raw, into)
		}
		if err != nil {
			return fmt.Errorf("configuration %s: %w", path, err)
		}
	}
	if err := errors.Join(append(unknown, validate())...); err != nil {
		return fmt.Errorf("configuration %s:\n%w", path, err)
	}
	return nil
}

// Identity returns a name for this process among its replicas, a new one at each call:
// the host name and the process ID, for people, and a random part. Without the random
// part two replicas could hold one Lease: in a container the process ID is 1, and the
// host name is the node's, which is also that of the previous replica, and that of other
// nodes if all are called localhost.
func Identity() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("read the host name: %w", err)
	}
	return fmt.Sprintf("%s_%d_%s", host, os.Getpid(), rand.Text()[:8]), nil
}

// invalid collects the problems of a configuration.
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
