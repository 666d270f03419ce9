package netdev

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

const sysctlRoot = "/proc/sys/"

// errNoSysctl says that this kernel does not have the setting.
var errNoSysctl = errors.New("setting is not offered by this kernel")

// readSysctl reads a setting of the calling thread's namespace.
func readSysctl(name string) (string, error) {
	b, err := os.ReadFile(sysctlRoot + name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s: %w", name, errNoSysctl)
	}
	if err != nil {
		return "", fmt.Errorf("reading the setting %s: %w", name, err)
	}
	return strings.TrimSpace(string(b)), nil
}

// setSysctl makes a setting have the value and returns what it had before. It
// writes only when that differs: /proc/sys may be read-only.
func setSysctl(name, value string) (before string, err error) {
	before, err = readSysctl(name)
	if err != nil || before == value {
		return before, err
	}
	// Opened without O_CREATE, as a setting that vanished must not be created.
	f, err := os.OpenFile(sysctlRoot+name, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(value)
		err = errors.Join(err, f.Close())
	}
	if errors.Is(err, fs.ErrNotExist) {
		return before, fmt.Errorf("%s: %w", name, errNoSysctl)
	}
	if err != nil {
		return before, fmt.Errorf("the setting %s is %s and must be %s: %w", name, before, value, err)
	}
	return before, nil
}
