package link

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const sysctlRoot = "/proc/sys/"

// errNoSysctl means that this kernel does not have the setting.
var errNoSysctl = errors.New("setting is not offered by this kernel")

// Sysctls are the settings of the host.
type Sysctls struct{}

// Read reads a setting by the path of its file below /proc/sys.
func (Sysctls) Read(name string) (string, error) { return ReadSysctl(name) }

// Set sets a setting. It writes only if the setting has another value.
func (Sysctls) Set(name, value string) error {
	_, err := SetSysctl(name, value)
	return err
}

// ReadSysctl reads a setting of the calling thread's namespace.
func ReadSysctl(name string) (string, error) {
	b, err := os.ReadFile(sysctlRoot + name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s: %w", name, errNoSysctl)
	}
	if err != nil {
		return "", fmt.Errorf("reading the setting %s: %w", name, err)
	}
	return strings.TrimSpace(string(b)), nil
}

// SetSysctl sets a setting and returns its previous value. It writes only if they differ.
func SetSysctl(name, value string) (before string, err error) {
	before, err = ReadSysctl(name)
	if err != nil || before == value {
		return before, err
	}
	// O_CREATE is missing on purpose: a setting that vanished must not be created.
	f, err := os.OpenFile(sysctlRoot+name, os.O_WRONLY, 0)
	if errors.Is(err, unix.EROFS) {
		f, err = openOwn(name)
	}
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

// openOwn opens a setting for writing if /proc/sys is read-only, as it is in a container
// that is not privileged.
func openOwn(name string) (*os.File, error) {
	proc, err := ownProc()
	if err != nil {
		return nil, err
	}
	return proc.OpenFile("sys/"+name, os.O_WRONLY, 0)
}

// ownProc returns a /proc of this process alone, which is mounted nowhere. It needs
// CAP_SYS_ADMIN, as entering a namespace does. It stays open as long as the process
// lives.
var ownProc = sync.OnceValues(func() (*os.Root, error) {
	context, err := unix.Fsopen("proc", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("/proc/sys is read-only; making a /proc of one's own: %w", err)
	}
	defer func() { _ = unix.Close(context) }()
	if err := unix.FsconfigCreate(context); err != nil {
		return nil, fmt.Errorf("/proc/sys is read-only; making a /proc of one's own: %w", err)
	}
	mount, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, fmt.Errorf("/proc/sys is read-only; making a /proc of one's own: %w", err)
	}
	defer func() { _ = unix.Close(mount) }()
	return os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", mount))
})
