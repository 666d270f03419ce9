package link_test

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/test/nettest"
)

// TestReadOnlySettings changes a setting while /proc/sys is read-only, as in a container.
// It changes in the namespace of the thread alone.
func TestReadOnlySettings(t *testing.T) {
	nettest.NeedRoot(t)
	const name = "net/ipv4/ip_forward"
	host, err := link.ReadSysctl(name)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	var before, after string
	go func() {
		runtime.LockOSThread() // without an unlock: the thread ends with its namespaces
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
				return err
			}
			for _, m := range []struct {
				path  string
				flags uintptr
			}{
				{"/", unix.MS_REC | unix.MS_PRIVATE},
				{"/proc/sys", unix.MS_BIND},
				{"/proc/sys", unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY},
			} {
				if err := unix.Mount(m.path, m.path, "", m.flags, ""); err != nil {
					return err
				}
			}
			var err error
			if before, err = link.SetSysctl(name, "1"); err != nil {
				return err
			}
			after, err = link.ReadSysctl(name)
			return err
		}()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if after != "1" {
		t.Errorf("%s is %q; must be 1, and was %q before", name, after, before)
	}
	if now, err := link.ReadSysctl(name); err != nil || now != host {
		t.Errorf("%s of the host is %q, error %v; was %q", name, now, err, host)
	}
}
