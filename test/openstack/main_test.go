package main

import (
	"bytes"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/test/openstack/lab"
)

func TestParse(t *testing.T) {
	for _, test := range []struct {
		name    string
		args    []string
		options lab.Options
		tests   []string
		want    string // in the error
	}{
		{"up", []string{"up"}, lab.Options{Release: "bookworm"}, []string{}, ""},
		{"another release", []string{"up", "--release", "trixie", "--octavia", "--bulk-tags", "--pairs", "50"}, lab.Options{Release: "trixie", Octavia: true, BulkTags: true, Pairs: 50}, []string{}, ""},
		{"down", []string{"down"}, lab.Options{}, []string{}, ""},
		{"arguments of go test", []string{"test", "--light", "--", "-v", "./x"}, lab.Options{Release: "bookworm", Light: true}, []string{"-v", "./x"}, ""},
		{"nothing", nil, lab.Options{}, nil, "the first argument must be up, down or test; usage: "},
		{"unknown verb", []string{"start"}, lab.Options{}, nil, `the first argument must be up, down or test, not "start"`},
		{"no tests", []string{"test"}, lab.Options{}, nil, "no package to test"},
		{"up with a package", []string{"up", "./x"}, lab.Options{}, nil, `unexpected argument "./x"`},
		{"down with a release", []string{"down", "--release", "trixie"}, lab.Options{}, nil, "flag provided but not defined: -release"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, err := parse(test.args, io.Discard)
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("error %v; want %s", err, test.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			test.options.Cache = filepath.Join(s.bin, "openstack")
			if diff := cmp.Diff(test.options, s.options); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.tests, s.tests); diff != "" {
				t.Errorf("arguments of go test (-want +got):\n%s", diff)
			}
		})
	}
}

// A command without its programs names each, and does nothing.
func TestMissingPrograms(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	var stderr bytes.Buffer
	if code := launch([]string{"up"}, io.Discard, &stderr); code != 3 {
		t.Errorf("exit code %d; want 3", code)
	}
	for _, want := range []string{"nothing was done", "the program ethtool: on Debian, apt-get install -y --no-install-recommends ethtool", "the program kubelab"} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("%q is not in: %s", want, &stderr)
		}
	}
}
