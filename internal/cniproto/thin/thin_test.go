package thin

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestClock(t *testing.T) {
	outer, before, inner := time.Now(), Now(), time.Now()
	Sleep(30)
	least := time.Since(inner).Milliseconds()
	passed := Now() - before
	most := time.Since(outer).Milliseconds()
	if least < 30 || passed < least-1 || passed > most+1 {
		t.Errorf("%d ms passed, by package time %d to %d: want one of these, and at least 30", passed, least, most)
	}
}

// The name under which a program was executed says which plugin it is.
func TestProgram(t *testing.T) {
	if os.Getenv("THIN_PROGRAM") != "" {
		_, _ = io.WriteString(os.Stdout, "program "+Program()+"\n")
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"whereabouts": "whereabouts", "fairlead-ipam": "fairlead-ipam", "a-name-that-is-longer": "a-name-that-is-",
	} {
		link := filepath.Join(t.TempDir(), name)
		if err := os.Symlink(self, link); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(link, "-test.run", "^TestProgram$")
		cmd.Env = append(os.Environ(), "THIN_PROGRAM=1")
		out, err := cmd.Output()
		if err != nil || !strings.Contains(string(out), "program "+want+"\n") {
			t.Errorf("executed as %s: %q, %v: want program %s", name, out, err, want)
		}
	}
}

// A file that whoever opened it wants no wait for is waited for all the same.
func TestFile(t *testing.T) {
	var ends [2]int
	if err := syscall.Pipe2(ends[:], syscall.O_NONBLOCK|syscall.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	in, out := File{FD: ends[0]}, File{FD: ends[1]}
	defer in.Close()
	sent := strings.Repeat("0123456789abcdef", 16<<10) // four times what a pipe holds
	written := make(chan error, 1)
	go func() {
		time.AfterFunc(20*time.Millisecond, func() {
			_, err := io.WriteString(out, sent)
			written <- errors.Join(err, out.Close())
		})
	}()
	got, err := io.ReadAll(in)
	if err := errors.Join(err, <-written); err != nil || string(got) != sent {
		t.Errorf("%d bytes read, %v: want the %d that were written", len(got), err, len(sent))
	}
	if _, err := (File{FD: -1}).Write([]byte("x")); !errors.Is(err, syscall.EBADF) {
		t.Errorf("write to nothing: %v, want %v", err, syscall.EBADF)
	}
}

func TestReadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	for limit, want := range map[int]string{3: "con", 7: "content", 100: "content"} {
		if got, err := ReadFile(path, limit); err != nil || string(got) != want {
			t.Errorf("up to %d bytes: %q, %v: want %q", limit, got, err, want)
		}
	}
	for _, path := range []string{path + ".none", filepath.Dir(path)} {
		if _, err := ReadFile(path, 10); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("error %v, want one that names %s", err, path)
		}
	}
	if got, err := ReadFile("/proc/sys/kernel/random/boot_id", 256); err != nil || len(got) < 36 {
		t.Errorf("boot ID %q, %v", got, err)
	}
}

func TestAge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if _, err := Age(path); !errors.Is(err, syscall.ENOENT) || !strings.Contains(err.Error(), path) {
		t.Errorf("of no file: %v, want %v that names it", err, syscall.ENOENT)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, age := range []time.Duration{-time.Hour, 0, 90 * time.Second} {
		then := time.Now().Add(-age)
		if err := os.Chtimes(path, then, then); err != nil {
			t.Fatal(err)
		}
		ms, err := Age(path)
		if off := time.Duration(ms)*time.Millisecond - age; err != nil || off < -time.Second || off > 10*time.Second {
			t.Errorf("%d ms, %v: want %v", ms, err, age)
		}
	}
}

// A file is there as a whole or not at all, and nothing else is left.
func TestReplaceFile(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "a", "b")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := OpenOwn(root, "a/b")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, content := range []string{"first", "second, and longer", ""} {
		if err := d.ReplaceFile("f", ".temp-", []byte(content)); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(dir, "f"))
		if err != nil || string(got) != content {
			t.Errorf("%q, %v: want %q", got, err, content)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "f")); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "dir", "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := d.ReplaceFile("dir", ".temp-", []byte("x")); err == nil || !strings.Contains(err.Error(), ".temp-") {
		t.Errorf("a directory: error %v, want one that names the file", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if !slices.Equal(names, []string{"dir", "f"}) {
		t.Errorf("the directory has %v, want dir and f", names)
	}
	for range 2 {
		if err := d.Remove("f"); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "f")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is still there: %v", err)
	}
	if err := d.Remove("dir"); err == nil {
		t.Error("a directory was removed")
	}
}

// A directory is opened only where all of the way to it is this user's alone.
func TestOpenOwn(t *testing.T) {
	root := t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "a", "b"), 0o700), os.MkdirAll(filepath.Join(root, "open", "b"), 0o700), os.Chmod(filepath.Join(root, "open"), 0o777),
		os.Symlink("a", filepath.Join(root, "link")), os.WriteFile(filepath.Join(root, "file"), nil, 0o700)); err != nil {
		t.Fatal(err)
	}
	for below, want := range map[string]error{
		"a/b": nil, "a": nil, "none": syscall.ENOENT, "none/b": syscall.ENOENT, "link": syscall.ENOTDIR, "link/b": syscall.ENOTDIR,
		"file": syscall.ENOTDIR, "open/b": ErrNotOwn, "open": ErrNotOwn,
	} {
		d, err := OpenOwn(root, below)
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", below, err, want)
		}
		if err != nil && !strings.Contains(err.Error(), root) {
			t.Errorf("%s: error %v does not name it", below, err)
		}
		if err == nil {
			_ = d.Close()
		}
	}
}
