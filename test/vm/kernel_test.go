package main

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// image returns an image of the x86 boot protocol with a payload and the size of the kernel.
func image(payload []byte, size int) []byte {
	const sectors, offset = 2, 0x10
	at := (sectors+1)*512 + offset
	raw := make([]byte, at, at+len(payload)+4)
	raw[0x1f1] = sectors
	copy(raw[0x202:], "HdrS")
	payload = binary.LittleEndian.AppendUint32(payload, uint32(size))
	binary.LittleEndian.PutUint32(raw[0x248:], offset)
	binary.LittleEndian.PutUint32(raw[0x24c:], uint32(len(payload)))
	return append(append(raw, payload...), "after the kernel"...)
}

func compressed(t *testing.T, program string, content []byte) []byte {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("needs the program %s", program)
	}
	var out bytes.Buffer
	cmd := exec.Command(program, "-c")
	cmd.Stdin, cmd.Stdout = bytes.NewReader(content), &out
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestVmlinux(t *testing.T) {
	kernel := []byte(elfMagic + strings.Repeat("kernel", 1000))
	for _, program := range []string{"xz", "zstd"} {
		t.Run(program, func(t *testing.T) {
			got, err := vmlinuxOf(t.Context(), image(compressed(t, program, kernel), len(kernel)))
			if err != nil || !bytes.Equal(got, kernel) {
				t.Errorf("%d bytes, %v; want the kernel's %d", len(got), err, len(kernel))
			}
		})
	}
	t.Run("gzip", func(t *testing.T) {
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		_, _ = w.Write(kernel)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		// The size at the end is gzip's own.
		raw := packed.Bytes()
		got, err := vmlinuxOf(t.Context(), image(raw[:len(raw)-4], len(kernel)))
		if err != nil || !bytes.Equal(got, kernel) {
			t.Errorf("%d bytes, %v; want the kernel's %d", len(got), err, len(kernel))
		}
	})
}

func TestVmlinuxRefuses(t *testing.T) {
	far := image([]byte(elfMagic), 4)
	binary.LittleEndian.PutUint32(far[0x24c:], 1<<31)
	for _, c := range []struct {
		name  string
		image []byte
		err   string
	}{
		{"an empty file", nil, `it is no image of a kernel: it lacks "HdrS" at 0x202`},
		{"another file", make([]byte, 4096), `it is no image of a kernel: it lacks "HdrS" at 0x202`},
		{"a kernel beyond the end", far, "its header places the kernel at 1552 to 2147485200; it has 1576 bytes"},
		{"another size", image([]byte(elfMagic), 5), "the kernel has 4 bytes decompressed, and 5 by its header"},
		{"lz4", image([]byte{0x02, 0x21, 0x4c, 0x18, 0, 0}, 4), "it begins with 02214c180000; want gzip, xz, zstd or ELF"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := vmlinuxOf(t.Context(), c.image); err == nil || err.Error() != c.err {
				t.Errorf("error %v, want %s", err, c.err)
			}
		})
	}
}

// A kernel that was unpacked with other modules is not used.
func TestKernelRelease(t *testing.T) {
	for _, c := range []struct{ name, manifest, want string }{
		{"complete", manifest("6.1.0-56-amd64"), "6.1.0-56-amd64"},
		{"missing", "", ""},
		{"fewer modules", "6.1.0-56-amd64\nvirtio_pci\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if c.manifest != "" {
				if err := os.WriteFile(filepath.Join(dir, manifestFile), []byte(c.manifest), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := kernelRelease(dir); got != c.want {
				t.Errorf("release %q, want %q", got, c.want)
			}
		})
	}
}

func TestReadEndings(t *testing.T) {
	commands := []command{{Args: []string{"a"}}, {Args: []string{"b"}}}
	for _, c := range []struct {
		name, content string
		want          []int
		err           string
	}{
		{name: "no command ended"},
		{name: "one", content: "{\"Status\":3}\n", want: []int{3}},
		{name: "both", content: "{\"Status\":0}\n{\"Status\":1}\n", want: []int{0, 1}},
		{name: "not started", content: "{\"Status\":0}\n{\"Error\":\"no such program\"}\n", err: `["b"] in the VM: no such program`},
		{name: "too many", content: "{}\n{}\n{}\n", err: `the VM reported "{}\n"; want one ending for each of 2 commands`},
		{name: "half a line", content: "{\"Sta", err: `the VM reported "{\"Sta"; want one ending for each of 2 commands`},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), endingsFile)
			if err := os.WriteFile(file, []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := readEndings(file, commands)
			if c.err != "" {
				if err == nil || err.Error() != c.err {
					t.Errorf("error %v, want %s", err, c.err)
				}
				return
			}
			if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}
