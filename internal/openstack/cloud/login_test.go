package cloud_test

import (
	"encoding/pem"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"

	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/test/cloudtest"
)

// The certificate of the cloud is verified, unless the file turns that off by its own words.
func TestCertificate(t *testing.T) {
	s := cloudtest.NewServer()
	server := httptest.NewTLSServer(s)
	t.Cleanup(server.Close)
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.pem")
	encoded := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(ca, encoded, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		line    string
		want    error
		warning bool
	}{
		"unknown authority": {"", cloud.ErrUnavailable, false},
		"cacert":            {"    cacert: " + ca, nil, false},
		"verify: false":     {"    verify: false", nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "clouds.yaml")
			if err := s.WriteFile(file, server.URL); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			changed := strings.Replace(string(text), "    region_name: RegionOne", "    region_name: RegionOne\n"+test.line, 1)
			if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
				t.Fatal(err)
			}
			var lines []string
			ctx := logr.NewContext(t.Context(), funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{}))
			c, err := cloud.New(ctx, cloud.Config{File: file, Cloud: cloudtest.Admin, Cluster: "c1"})
			if test.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				_, err = c.Networks(ctx)
			}
			if !errors.Is(err, test.want) || (len(lines) > 0) != test.warning {
				t.Errorf("%v with the log %q; want %v, and a warning: %v", err, lines, test.want, test.warning)
			}
		})
	}
}
