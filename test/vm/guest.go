package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The devices of the VM.
const (
	rootTag     = "root" // the files of this machine, by 9p
	outputPort  = 1
	endingsPort = 2
)

// runGuest is process 1 of the VM: it runs the commands of the plan and ends the VM. Its
// own errors are on the console.
func runGuest() {
	if err := guest(); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "vm:", err)
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART) // ends QEMU, which is started with -no-reboot
	select {}
}

func guest() error {
	for _, m := range []mount{{"proc", "/proc", "proc"}, {"sysfs", "/sys", "sysfs"}, {"devtmpfs", "/dev", "devtmpfs"}} {
		if err := m.make(0, ""); err != nil {
			return err
		}
	}
	raw, err := os.ReadFile("/" + planName)
	if err != nil {
		return err
	}
	var p plan
	if err := json.Unmarshal(raw, &p); err != nil {
		return fmt.Errorf("read the plan: %w", err)
	}
	if err := loadModules(); err != nil {
		return err
	}
	out, err := openPort(outputPort)
	if err != nil {
		return err
	}
	endings, err := openPort(endingsPort)
	if err != nil {
		return err
	}
	if err := enterRoot(); err != nil {
		return err
	}
	if err := raiseLoopback(); err != nil {
		return err
	}
	for _, entry := range p.Env { // PATH finds commands in the environment of this process
		name, value, _ := strings.Cut(entry, "=")
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("set %q in the environment: %w", name, err)
		}
	}
	report := json.NewEncoder(endings)
	for _, c := range p.Commands {
		if c.Title != "" {
			_, _ = fmt.Fprintf(out, "\n=== %s\n", c.Title)
		}
		if err := report.Encode(c.run(out)); err != nil {
			return fmt.Errorf("report the end of %q: %w", c.Args, err)
		}
	}
	return nil
}

// run runs the command to its end.
func (c command) run(out *os.File) ending {
	cmd := exec.Command(c.Args[0], c.Args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.Dir, out, out
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return ending{}
	case !errors.As(err, &exit):
		return ending{Error: err.Error()}
	case exit.Exited():
		return ending{Status: exit.ExitCode()}
	}
	_, _ = fmt.Fprintln(out, err) // the signal
	return ending{Status: exitFailed}
}

func loadModules() error {
	dir := "/" + modulesDir
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		m, err := os.Open(filepath.Join(dir, f.Name()))
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(m.Fd()), "", 0)
		_ = m.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("load the module %s: %w", f.Name(), err)
		}
	}
	return nil
}

// openPort opens a virtio port as soon as the kernel has made its device.
func openPort(nr int) (*os.File, error) {
	path := fmt.Sprintf("/dev/vport0p%d", nr)
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	defer func() { _ = watcher.Close() }()
	if err := watcher.Add("/dev"); err != nil {
		return nil, err
	}
	for {
		port, err := os.OpenFile(path, os.O_WRONLY, 0)
		if !errors.Is(err, os.ErrNotExist) {
			return port, err
		}
		select {
		case <-watcher.Events:
		case err := <-watcher.Errors:
			return nil, err
		}
	}
}

type mount struct{ source, target, fstype string }

func (m mount) make(flags uintptr, data string) error {
	if err := os.MkdirAll(m.target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(m.source, m.target, m.fstype, flags, data); err != nil {
		return fmt.Errorf("mount %s at %s: %w", m.source, m.target, err)
	}
	return nil
}

// enterRoot makes the files of the machine the root, below a layer in memory that takes
// all changes. /run is empty: its files belong to processes of the machine.
func enterRoot() error {
	err := errors.Join(
		mount{rootTag, "/machine", "9p"}.make(unix.MS_RDONLY, "trans=virtio,version=9p2000.L,msize=524288,cache=loose"),
		mount{"changes", "/changes", "tmpfs"}.make(0, ""),
		os.Mkdir("/changes/upper", 0o755), os.Mkdir("/changes/work", 0o755),
		mount{"overlay", "/root", "overlay"}.make(0, "lowerdir=/machine,upperdir=/changes/upper,workdir=/changes/work"),
		mount{"tmpfs", "/root/run", "tmpfs"}.make(0, "mode=0755"),
	)
	for _, dir := range []string{"/proc", "/sys", "/dev"} {
		err = errors.Join(err, mount{dir, "/root" + dir, ""}.make(unix.MS_MOVE, ""))
	}
	if err != nil {
		return err
	}
	err = errors.Join(
		os.Chdir("/root"),
		unix.Mount(".", "/", "", unix.MS_MOVE, ""),
		unix.Chroot("."),
		os.Chdir("/"),
	)
	if err != nil {
		return fmt.Errorf("make the files of the machine the root: %w", err)
	}
	return nil
}

func raiseLoopback() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}
