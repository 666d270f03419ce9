package ui

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/internal/cli/kube"
)

func TestListen(t *testing.T) {
	for _, tt := range []struct{ address, want string }{
		{"127.0.0.1:0", ""},
		{"127.9.9.9:0", ""},
		{"0.0.0.0:8080", "0.0.0.0:8080 is reached from other machines, and the page has no login: use an address such as 127.0.0.1:8080, with kubectl port-forward or ssh -L from elsewhere"},
		{"192.0.2.7:80", "192.0.2.7:80 is reached from other machines"},
		{"[::]:80", "[::]:80 is reached from other machines"},
		{":8080", `":8080" is no address with a port: write it as 127.0.0.1:8080, or 127.0.0.1:0 for a free port`},
		{"localhost:80", `"localhost:80" is no address with a port`},
		{"127.0.0.1", `"127.0.0.1" is no address with a port`},
	} {
		l, err := Listen(t.Context(), tt.address)
		switch {
		case err == nil && tt.want == "":
			l.Close()
		case err == nil || tt.want == "" || !strings.HasPrefix(err.Error(), tt.want):
			t.Errorf("Listen(%q): %v, want %q", tt.address, err, tt.want)
		}
	}
}

func TestGuard(t *testing.T) {
	handler := Handler(NewStream(NewModel(testViews())), Info{})
	for _, tt := range []struct {
		name, method, path, host, site string
		want                           int
	}{
		{"page", "GET", "/", "127.0.0.1:8080", "", 200},
		{"page by its name", "GET", "/", "localhost:8080", "none", 200},
		{"page by IPv6", "GET", "/", "[::1]:8080", "", 200},
		{"page by IPv6 without a port", "GET", "/", "[::1]", "", 200},
		{"link of another site", "GET", "/", "localhost:8080", "cross-site", 200},
		{"script", "GET", "/main.js", "localhost", "same-origin", 200},
		{"no such file", "GET", "/main.go", "localhost", "", 404},
		{"above the page", "GET", "/../server.go", "localhost", "", 307},
		{"no such pod", "GET", "/story?namespace=shop&name=web", "localhost", "", 404},
		{"name that resolves to this machine", "GET", "/", "evil.example:8080", "", 403},
		{"name with a loopback address in it", "GET", "/", "127.0.0.1.evil.example", "", 403},
		{"another address", "GET", "/", "192.0.2.7:8080", "", 403},
		{"no host", "GET", "/", "", "", 403},
		{"stream for another host", "GET", "/stream", "evil.example", "", 403},
		{"stream for another site", "GET", "/stream", "localhost", "cross-site", 403},
		{"story for another port", "GET", "/story", "localhost", "same-site", 403},
		{"write", "POST", "/", "localhost", "", 405},
		{"delete", "DELETE", "/story", "localhost", "", 405},
		{"head", "HEAD", "/stream", "localhost", "", 405},
		{"preflight", "OPTIONS", "/stream", "localhost", "", 405},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequestWithContext(t.Context(), tt.method, tt.path, nil)
			r.Host = tt.host
			if tt.site != "" {
				r.Header.Set("Sec-Fetch-Site", tt.site)
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if w.Code != tt.want {
				t.Errorf("%s %s for %q: %d %s, want %d", tt.method, tt.path, tt.host, w.Code, w.Body, tt.want)
			}
			want := map[string]string{
				"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
					"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
				"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Access-Control-Allow-Origin": "",
			}
			for name, value := range want {
				if got := w.Header().Get(name); got != value {
					t.Errorf("header %s is %q, want %q", name, got, value)
				}
			}
		})
	}
}

// TestHealth checks that a kubelet sees when the page has its data, and nothing of the data.
func TestHealth(t *testing.T) {
	s := NewStream(NewModel(testViews()))
	handler := Health(s)
	want := func(path string, code int, body string) {
		t.Helper()
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		if w.Code != code || w.Body.String() != body {
			t.Errorf("%s: %d %q, want %d %q", path, w.Code, w.Body, code, body)
		}
	}
	for _, r := range resources[3:] {
		s.Replace(r, nil)
	}
	want("/healthz", 200, "ok\n")
	want("/readyz", 503, "not read yet: [nodenetworks.fairlead.dev pods podattachments.fairlead.dev]\n")
	s.Refused(kube.NodeNetworks, fmt.Errorf("%w: no such resource", kube.ErrMissing))
	s.Refused(kube.Pods, fmt.Errorf("%w: cannot list", kube.ErrForbidden))
	s.Refused(kube.PodAttachments, errors.New("192.0.2.1: connection refused"))
	want("/readyz", 503, "not read yet: [podattachments.fairlead.dev]\n")
	s.Replace(kube.PodAttachments, nil)
	want("/readyz", 200, "ok\n")
	s.Refused(kube.PodAttachments, errors.New("192.0.2.1: connection refused")) // the page keeps its data
	want("/readyz", 200, "ok\n")
	for _, path := range []string{"/", "/stream", "/story", "/main.js"} {
		want(path, 404, "404 page not found\n")
	}
}

// TestPageIsWhole checks that the page loads its own files alone, and that none of its
// scripts parses HTML.
func TestPageIsWhole(t *testing.T) {
	entries, err := page.ReadDir("page")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		text, err := page.ReadFile("page/" + e.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{"http:", "https:", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "DOMParser", "srcdoc", "<style", "style=", "onclick=\"", "@import", "url("} {
			if strings.Contains(strings.ReplaceAll(string(text), "http://www.w3.org/2000/svg", ""), bad) {
				t.Errorf("%s has %q", e.Name(), bad)
			}
		}
	}
}

// read returns the next event of a stream and its data.
func read(t *testing.T, r *bufio.Reader) (event, data string) {
	t.Helper()
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("the stream has ended: %v", err)
		}
		switch line = strings.TrimSuffix(line, "\n"); {
		case strings.HasPrefix(line, "event: "):
			event = strings.TrimPrefix(line, "event: ")
		case strings.HasPrefix(line, "data: "):
			data = strings.TrimPrefix(line, "data: ")
		case line == "":
			return event, data
		}
	}
}

func TestStreamOverHTTP(t *testing.T) {
	s := NewStream(NewModel(testViews()))
	s.Replace(kube.NodeNetworks, []client.Object{node("node-1")})
	server := httptest.NewServer(Handler(s, Info{Server: "https://192.0.2.1", Version: "v1"}))
	t.Cleanup(server.Close)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/stream", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if got := response.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Errorf("the stream is %q", got)
	}
	r := bufio.NewReader(response.Body)
	if event, data := read(t, r); event != "start" || data != `{"server":"https://192.0.2.1","version":"v1"}` {
		t.Errorf("first %s %s", event, data)
	}
	if event, data := read(t, r); event != "rows" || !strings.Contains(data, `{"kind":"node","id":"node-1","row":null}`) {
		t.Errorf("then %s %s", event, data)
	}
	if event, data := read(t, r); event != "ready" || data != "null" {
		t.Errorf("then %s %s", event, data)
	}
	s.Put(kube.NodeNetworks, node("node-2"))
	s.Remove(kube.NodeNetworks, node("node-1"))
	event, data := read(t, r)
	var got []Change
	if err := json.Unmarshal([]byte(data), &got); err != nil {
		t.Fatal(err)
	}
	want := []Change{{Kind: "node", ID: "node-1"}, {Kind: "node", ID: "node-2", Row: json.RawMessage("null")}}
	if diff := cmp.Diff(want, got); event != "rows" || diff != "" {
		t.Errorf("change: %s (-want +got):\n%s", event, diff)
	}
}

// TestBatches checks that the changes of a moment are one message, and that an idle cluster
// costs nothing.
func TestBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStream(NewModel(testViews()))
		_, following, end := s.Open()
		<-time.After(2 * coolEvery)
		synctest.Wait()
		start := time.Now()
		for _, name := range []string{"a", "b", "c", "a"} {
			s.Put(kube.NodeNetworks, node(name))
		}
		if text := string(<-following); strings.Count(text, `"kind":"node"`) != 3 || time.Since(start) != batch {
			t.Errorf("after %v: %s", time.Since(start), text)
		}
		<-time.After(time.Hour)
		synctest.Wait()
		if len(following) > 0 {
			t.Errorf("without a change: %s", <-following)
		}
		end()
		s.Put(kube.NodeNetworks, node("d"))
		<-time.After(time.Hour)
		synctest.Wait()
		if len(following) > 0 {
			t.Error("a page that is gone gets messages")
		}
	})
}

// TestSlowPageIsDropped: a page that does not read never delays the others.
func TestSlowPageIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStream(NewModel(testViews()))
		_, slow, end := s.Open()
		defer end()
		_, quick, endQuick := s.Open()
		defer endQuick()
		n := 0
		for i := range 3 * queued {
			s.Put(kube.NodeNetworks, node(strings.Repeat("n", i+1)))
			n += len(string(<-quick))
		}
		for range queued {
			<-slow
		}
		if _, open := <-slow; open || n == 0 {
			t.Error("a page that does not keep up is not dropped")
		}
	})
}

func TestMessagesAreBounded(t *testing.T) {
	all := make([]Change, 2*rowsPerMessage+1)
	if got := len(messages(all)); got != 3 {
		t.Errorf("%d messages, want 3", got)
	}
	hostile := string(message("rows", "a\nevent: start\n\u2028</script>"))
	if strings.Count(hostile, "\n") != 3 {
		t.Errorf("a text breaks out of its message: %q", hostile)
	}
}

func TestServeEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l, err := Listen(ctx, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, Handler(NewStream(NewModel(testViews())), Info{})) }()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.Addr().String()+"/stream", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		t.Errorf("the stream: %v", err)
	}
}
