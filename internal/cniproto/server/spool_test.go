package server

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/internal/cniproto"
)

// TestMain places the spools of the tests in a directory that tests may write to.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "run")
	if err == nil {
		err = os.Setenv("TMPDIR", dir)
	}
	if err != nil {
		panic(err)
	}
	cniproto.RunDir = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// newSpool creates a spool as the daemon does.
func newSpool(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run", "del")
	if err := MakeSpool(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func del(id, ifName string) cniproto.Request {
	return cniproto.Request{RequestID: "1", Verb: cniproto.VerbDel, ContainerID: id, IfName: ifName, Config: []byte(`{"cniVersion":"1.0.0"}`)}
}

// names returns the names of the files in a directory.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	got := []string{}
	for _, e := range entries {
		got = append(got, e.Name())
	}
	return got
}

func requests(spooled []Spooled) []cniproto.Request {
	var got []cniproto.Request
	for _, s := range spooled {
		got = append(got, s.Request)
	}
	return got
}

func TestSpool(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run", "del")
	if spooled, err := ReadSpool(dir); err != nil || len(spooled) > 0 {
		t.Fatalf("spool that does not exist: %v, %v", spooled, err)
	}
	if err := cniproto.SpoolDel(dir, del("a", "eth0")); !errors.Is(err, cniproto.ErrNoSpool) {
		t.Errorf("a DEL without a spool: %v, want %v", err, cniproto.ErrNoSpool)
	}
	if _, err := os.Stat(filepath.Dir(dir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the plugin made a directory: %v", err)
	}
	if err := MakeSpool(dir); err != nil {
		t.Fatal(err)
	}
	// With a dot as separator, the first and the third would have the same file name.
	want := []cniproto.Request{del("a", "b.c"), del("a", "eth0"), del("a.b", "c"), del("b", "")}
	for _, r := range append([]cniproto.Request{{Verb: cniproto.VerbDel, ContainerID: "a", IfName: "eth0"}}, want...) {
		if err := cniproto.SpoolDel(dir, r); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode() != fs.ModeDir|0o700 {
		t.Errorf("directory has mode %v, %v", info.Mode(), err)
	}
	if diff := cmp.Diff([]string{"a.b@c.json", "a@b.c.json", "a@eth0.json", "b@.json"}, names(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if info, err := os.Stat(filepath.Join(dir, "a@eth0.json")); err != nil || info.Mode() != 0o600 {
		t.Errorf("file has mode %v, %v", info.Mode(), err)
	}
	spooled, err := ReadSpool(dir)
	if err != nil {
		t.Fatal(err)
	}
	got := requests(spooled)
	slices.SortFunc(got, func(a, b cniproto.Request) int {
		return strings.Compare(a.ContainerID+" "+a.IfName, b.ContainerID+" "+b.IfName)
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("spool (-want +got):\n%s", diff)
	}
	for range 2 {
		for _, s := range spooled {
			if err := s.Remove(); err != nil {
				t.Error(err)
			}
		}
	}
	if err := cniproto.Unspool(dir, want[0]); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{}, names(t, dir)); diff != "" {
		t.Errorf("files left (-want +got):\n%s", diff)
	}
}

// A damaged file yields the DEL that its name describes. The other DELs stay complete.
func TestSpoolDamage(t *testing.T) {
	dir := newSpool(t)
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := cniproto.SpoolDel(dir, del("good", "eth0")); err != nil {
		t.Fatal(err)
	}
	write("torn@eth0.json", encoded(t, del("torn", "eth0"))[:60])
	write("empty@net1.json", "")
	write("other@eth0.json", encoded(t, del("another", "eth0")))
	write("add@eth0.json", encoded(t, add("add")))
	write("large@eth0.json", strings.Repeat(" ", cniproto.MaxRequest+1))
	write("nobody.json", `{}`)
	write(".hidden@eth0.json", `{}`)
	write("README", "not ours")
	write(".del-new", "")
	write(".del-old", "")
	old := time.Now().Add(-2 * tempAge)
	if err := os.Chtimes(filepath.Join(dir, ".del-old"), old, old); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "dir@eth0.json"), 0o700); err != nil {
		t.Fatal(err)
	}

	spooled, err := ReadSpool(dir)
	if err != nil {
		t.Fatal(err)
	}
	byName := func(id, ifName string) cniproto.Request {
		return cniproto.Request{Verb: cniproto.VerbDel, ContainerID: id, IfName: ifName}
	}
	want := []cniproto.Request{
		byName("add", "eth0"), byName("dir", "eth0"), byName("empty", "net1"), del("good", "eth0"),
		byName("large", "eth0"), byName("other", "eth0"), byName("torn", "eth0"),
	}
	if diff := cmp.Diff(want, requests(spooled)); diff != "" {
		t.Errorf("spool (-want +got):\n%s", diff)
	}
	for _, s := range spooled {
		if damaged := s.Request.ContainerID != "good"; (s.Damaged != nil) != damaged {
			t.Errorf("%s: damage %v", s.Request.ContainerID, s.Damaged)
		}
		if err := s.Remove(); err != nil {
			t.Error(err)
		}
	}
	left := []string{
		".del-new", ".hidden@eth0.json.bad", "README", "add@eth0.json.bad", "dir@eth0.json.bad", "empty@net1.json.bad",
		"large@eth0.json.bad", "nobody.json.bad", "other@eth0.json.bad", "torn@eth0.json.bad",
	}
	if diff := cmp.Diff(left, names(t, dir)); diff != "" {
		t.Errorf("files left (-want +got):\n%s", diff)
	}
	if again, err := ReadSpool(dir); err != nil || len(again) > 0 {
		t.Errorf("second time: %v, %v: want nothing", again, err)
	}
}

// A damaged file that cannot be set aside is reported and does not hide the other DELs.
func TestSpoolDamageThatStays(t *testing.T) {
	dir := newSpool(t)
	for _, err := range []error{
		os.WriteFile(filepath.Join(dir, "a.json"), []byte("{"), 0o600),
		os.Mkdir(filepath.Join(dir, "a.json.bad"), 0o700),
		cniproto.SpoolDel(dir, cniproto.Request{Verb: cniproto.VerbDel, ContainerID: "good", IfName: "eth0"}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	spooled, err := ReadSpool(dir)
	if err == nil || len(spooled) != 1 || spooled[0].Request.ContainerID != "good" {
		t.Errorf("%+v, %v", spooled, err)
	}
}

func TestSpoolRefuses(t *testing.T) {
	dir := newSpool(t)
	if err := cniproto.SpoolDel(dir, cniproto.Request{Verb: cniproto.VerbAdd, ContainerID: "a", IfName: "eth0", Netns: "/n", Config: []byte(config)}); err == nil || !strings.Contains(err.Error(), "ADD") {
		t.Errorf("ADD: error %v", err)
	}
	if err := cniproto.SpoolDel(dir, del("../a", "eth0")); cniproto.AsError(err).Code != cniproto.CodeInvalidEnvironment || !strings.Contains(err.Error(), "../a") {
		t.Errorf("container ID that is a path: error %v", err)
	}
	if diff := cmp.Diff([]string{}, names(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSpool(file); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("reading a file as a spool: error %v", err)
	}
	// A rename that fails leaves no unfinished file.
	if err := os.Mkdir(filepath.Join(dir, "b@eth0.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := cniproto.SpoolDel(dir, del("b", "eth0")); err == nil {
		t.Error("a directory was replaced by a file")
	}
	if diff := cmp.Diff([]string{"b@eth0.json", "file"}, names(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// The plugin only writes into a spool that the daemon created, and creates no directory,
// even if a configuration names another path.
func TestSpoolIsTheDaemons(t *testing.T) {
	root := t.TempDir()
	made := func(name string, mode fs.FileMode) string {
		t.Helper()
		dir := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, mode)); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	good := made("good", 0o700)
	link, way := filepath.Join(root, "link"), filepath.Join(root, "way")
	made("open/del", 0o700)
	if err := errors.Join(os.Symlink(good, link), os.Symlink(root, way), os.WriteFile(filepath.Join(root, "file"), nil, 0o700), os.Chmod(filepath.Join(root, "open"), 0o777)); err != nil {
		t.Fatal(err)
	}
	others := made("others", 0o700)
	for _, tc := range []struct{ name, dir, wantText string }{
		{"readable by others", made("readable", 0o755), "mode 0700"},
		{"writable by others", made("writable", 0o777), "mode 0700"},
		{"sticky", made("sticky", 0o700|fs.ModeSticky), "mode 0700"},
		{"a symbolic link to one", link, link},
		{"one behind a symbolic link", filepath.Join(way, "good"), way},
		{"one where others may write", filepath.Join(root, "open", "del"), filepath.Join(root, "open")},
		{"a file", filepath.Join(root, "file"), filepath.Join(root, "file")},
		{"somebody else's", others, others},
		{"not in a run directory", "/etc/fairlead/del", "must be below " + os.TempDir()},
		{"the run directory itself", os.TempDir(), "must be below"},
		{"out of the run directory", os.TempDir() + "/../etc", "must be below"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.dir == others {
				if os.Geteuid() != 0 {
					t.Skip("needs root: gives a directory away")
				}
				if err := os.Chown(others, 65534, 65534); err != nil {
					t.Fatal(err)
				}
			}
			err := cniproto.SpoolDel(tc.dir, del("a", "eth0"))
			if err == nil || errors.Is(err, cniproto.ErrNoSpool) || !strings.Contains(err.Error(), tc.wantText) {
				t.Errorf("error %v, want one with %q", err, tc.wantText)
			}
		})
	}
	if err := cniproto.SpoolDel(good, del("a", "eth0")); err != nil {
		t.Errorf("in one as the daemon makes it: %v", err)
	}
	for name, want := range map[string]bool{cniproto.RunDir: false, filepath.Join(os.TempDir(), "f", "del"): true, "/etc/del": false} {
		if got := cniproto.Spoolable(name); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// MakeSpool corrects the mode of an existing directory. A symbolic link or a file in its
// place is an error.
func TestMakeSpool(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run", "del")
	for range 2 {
		if err := MakeSpool(dir); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode() != fs.ModeDir|0o700 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	other := filepath.Join(t.TempDir(), "del")
	if err := os.Symlink(dir, other); err != nil {
		t.Fatal(err)
	}
	if err := MakeSpool(other); err == nil || !strings.Contains(err.Error(), other) {
		t.Errorf("a symbolic link: error %v, want one that names it", err)
	}
	if err := os.WriteFile(other+"2", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := MakeSpool(other + "2"); err == nil || !strings.Contains(err.Error(), other+"2") {
		t.Errorf("a file: error %v, want one that names it", err)
	}
}

// The spool separates the DEL of an IPAM plugin from the pod's own DEL, even if their files
// are damaged: one must not be carried out as the other.
func TestSpoolKeepsIPAMApart(t *testing.T) {
	dir := newSpool(t)
	for _, ipam := range []string{"", "whereabouts"} {
		if err := cniproto.SpoolDel(dir, cniproto.Request{Verb: cniproto.VerbDel, ContainerID: "c1", IfName: "eth0", IPAM: ipam}); err != nil {
			t.Fatal(err)
		}
	}
	read := func() (got []string) {
		spooled, err := ReadSpool(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range spooled {
			got = append(got, s.Request.ContainerID+" "+s.Request.IfName+" "+s.Request.IPAM)
		}
		return got
	}
	if diff := cmp.Diff([]string{"c1 eth0 whereabouts", "c1 eth0 "}, read()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.WriteFile(filepath.Join(dir, e.Name()), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"c1 eth0 fairlead-ipam", "c1 eth0 "}, read()); diff != "" {
		t.Errorf("damaged, -want +got:\n%s", diff)
	}
}

// Plugins write while the daemon reads. Every DEL is read complete, and exactly once.
func TestSpoolConcurrent(t *testing.T) {
	const writers, each = 8, 20
	dir := newSpool(t)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				if err := cniproto.SpoolDel(dir, del("w"+strconv.Itoa(w)+"-"+strconv.Itoa(i), "eth0")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	seen := map[string]int{}
	read := func() {
		spooled, err := ReadSpool(dir)
		if err != nil {
			t.Error(err)
		}
		for _, s := range spooled {
			if s.Damaged != nil {
				t.Errorf("%s: %v", s.Request.ContainerID, s.Damaged)
			}
			seen[s.Request.ContainerID]++
			if err := s.Remove(); err != nil {
				t.Error(err)
			}
		}
	}
	written := make(chan struct{})
	go func() {
		wg.Wait()
		close(written)
	}()
	for done := false; !done; {
		select {
		case <-written:
			done = true
		default:
		}
		read()
	}
	if len(seen) != writers*each {
		t.Errorf("%d DELs read, want %d", len(seen), writers*each)
	}
	for id, n := range seen {
		if n != 1 {
			t.Errorf("%s was read %d times", id, n)
		}
	}
}

// No name and no content of a file makes ReadSpool fail or hides another DEL. ReadSpool
// only returns valid DELs, and no DEL after its Remove.
func FuzzReadSpool(f *testing.F) {
	f.Add("a@eth0.json", []byte("fairlead/1\n\x00\x00\x00\x31\x00\x00\x00\x00"+`{"verb":"DEL","containerID":"a","ifName":"eth0" }`))
	f.Add("a@eth0.json", []byte("fairlead/1\n\x00\x00\x00\x20\x00\x00\x00\x00"+`{"verb":"DEL","containerID":"b"}`))
	f.Add("@.json", []byte(`{`))
	f.Add(".del-x.json", []byte(``))
	f.Fuzz(func(t *testing.T, name string, content []byte) {
		dir := newSpool(t)
		if strings.ContainsAny(name, "/\x00") || os.WriteFile(filepath.Join(dir, name), content, 0o600) != nil {
			t.Skip("no name of a file")
		}
		if err := cniproto.SpoolDel(dir, del("beside", "eth0")); err != nil {
			t.Fatal(err)
		}
		spooled, err := ReadSpool(dir)
		if err != nil {
			t.Fatal(err)
		}
		beside := false
		for _, s := range spooled {
			if err := s.Request.Validate(); err != nil || s.Request.Verb != cniproto.VerbDel {
				t.Errorf("request %+v, %v", s.Request, err)
			}
			beside = beside || s.Request.ContainerID == "beside"
			if err := s.Remove(); err != nil {
				t.Error(err)
			}
		}
		if !beside {
			t.Error("the DEL beside it is lost")
		}
		if again, err := ReadSpool(dir); err != nil || len(again) > 0 {
			t.Errorf("second time: %+v, %v", again, err)
		}
	})
}
