package cniproto

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// listen passes each connection on a new socket to f.
func listen(t *testing.T, f func(net.Conn)) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			f(conn)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return socket
}

// receive reads a request with net/http.
func receive(conn net.Conn) (*http.Request, []byte, error) {
	r, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		return nil, nil, err
	}
	body, err := io.ReadAll(r.Body)
	return r, body, err
}

func soon() time.Time { return time.Now().Add(10 * time.Second) }

func TestClientDo(t *testing.T) {
	sent := Request{RequestID: "1", Verb: VerbAdd, ContainerID: "a", Netns: "/n", IfName: "eth0", Config: []byte(goodConfig)}
	for _, tc := range []struct {
		name, answer string
		body         string
		err          error
		code         int
		wantText     string
	}{
		{name: "result", answer: "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n{  }", body: "{  }"},
		{name: "no body", answer: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
		{
			name: "CNI error", answer: "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 39\r\n\r\n" + `{"code":11,"msg":"later","details":"x"}`,
			code: CodeTryAgainLater, wantText: "later; x",
		},
		{name: "another error", answer: "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nwhat", code: CodeInternal, wantText: `status 404 and no CNI error: "what"`},
		{name: "a daemon that ends", answer: "HTTP/1.1 421 Misdirected Request\r\nContent-Length: 11\r\n\r\n" + `{"code":11}`, err: ErrAway},
		{name: "not HTTP", answer: "SSH-2.0-OpenSSH\r\n", code: CodeDecode, wantText: `status line "SSH-2.0-OpenSSH"`},
		{name: "nothing", err: ErrLost},
		{name: "half an answer", answer: "HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n{", err: ErrLost},
	} {
		t.Run(tc.name, func(t *testing.T) {
			socket := listen(t, func(conn net.Conn) {
				r, raw, err := receive(conn)
				if err != nil {
					t.Errorf("receive: %v", err)
					return
				}
				got, err := DecodeRequest(raw)
				if err != nil || got.DeadlineMS <= 0 || got.DeadlineMS > 10_000 {
					t.Errorf("request with deadline %d, %v: want one within 10 s", got.DeadlineMS, err)
				}
				got.DeadlineMS = 0
				if diff := cmp.Diff(sent, got); diff != "" {
					t.Errorf("request (-want +got):\n%s", diff)
				}
				if r.Method != http.MethodPost || r.URL.Path != Path || !r.Close || r.UserAgent() != "fairlead-cni/unreleased" {
					t.Errorf("%s %s, close %v, by %q", r.Method, r.URL, r.Close, r.UserAgent())
				}
				_, _ = io.WriteString(conn, tc.answer)
			})
			body, err := (&Client{Socket: socket}).Do(soon(), &sent)
			switch {
			case tc.err != nil:
				if !errors.Is(err, tc.err) {
					t.Errorf("error %v, want %v", err, tc.err)
				}
			case tc.code != 0:
				expectError(t, err, tc.code)
				if !strings.Contains(err.Error(), tc.wantText) {
					t.Errorf("error %q lacks %q", err, tc.wantText)
				}
			case err != nil || string(body) != tc.body:
				t.Errorf("body %q, %v: want %q", body, err, tc.body)
			}
		})
	}
}

// The client reads the answer of a daemon that refuses a request before it has read all
// of it.
func TestClientHearsEarlyAnswer(t *testing.T) {
	socket := listen(t, func(conn net.Conn) {
		_, _ = io.WriteString(conn, "HTTP/1.1 403 Forbidden\r\nContent-Length: 24\r\n\r\n{\"code\":999,\"msg\":\"who\"}")
	})
	big := Request{Verb: VerbDel, ContainerID: "a", Args: strings.Repeat("a", MaxRequest-200)}
	_, err := (&Client{Socket: socket}).Do(soon(), &big)
	expectError(t, err, CodeInternal, "who")
}

func TestClientAway(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	for _, tc := range []struct {
		name, socket string
		cause        error
	}{
		{"no socket", filepath.Join(dir, "none"), syscall.ENOENT},
		{"no directory", filepath.Join(dir, "none", "s"), syscall.ENOENT},
		{"nobody listens", stale, syscall.ECONNREFUSED},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := (&Client{Socket: tc.socket}).Do(soon(), &Request{Verb: VerbAdd})
			if !errors.Is(err, ErrAway) || !errors.Is(err, tc.cause) || !strings.Contains(err.Error(), tc.socket) {
				t.Errorf("error %v, want %v that names the socket and %v", err, ErrAway, tc.cause)
			}
		})
	}
}

// The client sends nothing if the path is not a socket of this user, or if another user
// listens on it.
func TestClientForeign(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: gives a socket away")
	}
	asked := make(chan struct{}, 8)
	socket := listen(t, func(net.Conn) { asked <- struct{}{} })
	dir := t.TempDir()
	link, file := filepath.Join(dir, "link"), filepath.Join(dir, "file")
	if err := errors.Join(os.Symlink(socket, link), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	refused := func(path string) {
		t.Helper()
		_, err := (&Client{Socket: path}).Do(soon(), &Request{Verb: VerbAdd})
		if !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), DefaultSocket()) {
			t.Errorf("error %v, want %v that names %s and %s", err, ErrForeign, path, DefaultSocket())
		}
	}
	refused(link)
	refused(file)
	if err := os.Chown(socket, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	refused(socket)

	// Root owns the file of the socket, but another user listens: the kernel records the
	// peer's credentials at listen(2).
	other := filepath.Join(dir, "other")
	listenAs(t, 65534, other)
	refused(other)
	select {
	case <-asked:
		t.Error("a connection came")
	default:
	}
}

// listenAs listens on a socket as user uid. The socket's file belongs to root.
func listenAs(t *testing.T, uid int, path string) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		if err == nil {
			err = syscall.Bind(fd, &syscall.SockaddrUnix{Name: path})
		}
		if err == nil {
			if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
				err = errno
			}
		}
		if err == nil {
			err = syscall.Listen(fd, 8)
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestClientNoAnswer(t *testing.T) {
	gone := make(chan error, 1)
	socket := listen(t, func(conn net.Conn) {
		_, _, err := receive(conn)
		_, eof := conn.Read(make([]byte, 1)) // until the client is gone
		gone <- errors.Join(err, eof)
	})
	_, err := (&Client{Socket: socket}).Do(time.Now().Add(50*time.Millisecond), &Request{Verb: VerbAdd})
	if !errors.Is(err, ErrNoAnswer) {
		t.Errorf("error %v, want %v", err, ErrNoAnswer)
	}
	if err := <-gone; !errors.Is(err, io.EOF) {
		t.Errorf("the daemon's side saw %v, want the end of the connection", err)
	}
	if _, err := (&Client{Socket: socket}).Do(time.Now(), &Request{Verb: VerbAdd}); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("after the deadline: error %v, want %v", err, ErrNoAnswer)
	}
}

func TestClientTooLarge(t *testing.T) {
	_, err := (&Client{Socket: "/none"}).Do(soon(), &Request{Verb: VerbAdd, Args: strings.Repeat("a", MaxRequest)})
	expectError(t, err, CodeDecode, "request: larger than the limit of 1000000 bytes")
}

// expectUnread checks the error of an answer that ends too early, if early is set, or is
// malformed, if wantText is set. It reports whether one of them is set.
func expectUnread(t *testing.T, err error, early bool, wantText string) bool {
	t.Helper()
	switch {
	case early:
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("error %v, want %v", err, io.ErrUnexpectedEOF)
		}
	case wantText != "":
		expectError(t, err, CodeDecode, wantText)
	}
	return early || wantText != ""
}

func TestReadAnswer(t *testing.T) {
	for _, tc := range []struct {
		name, answer string
		status       int
		body         string
		early        bool
		wantText     string
	}{
		{name: "plain", answer: "HTTP/1.1 200 OK\r\nA: b\r\ncontent-length:  2 \r\n\r\nhi and more", status: 200, body: "hi"},
		{name: "no reason, bare line ends", answer: "HTTP/1.0 503\nContent-Length: 0\n\n", status: 503},
		{name: "nothing", early: true},
		{name: "half a status line", answer: "HTTP/1.1 2", early: true},
		{name: "half the headers", answer: "HTTP/1.1 200 OK\r\nContent-Le", early: true},
		{name: "half a body", answer: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nh", early: true},
		{name: "no length", answer: "HTTP/1.1 200 OK\r\n\r\n", wantText: "no Content-Length"},
		{name: "chunked", answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", wantText: "Transfer-Encoding: chunked"},
		{name: "two lengths", answer: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi!", wantText: `"Content-Length: 3"`},
		{name: "negative length", answer: "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", wantText: `"Content-Length: -1"`},
		{name: "large length", answer: "HTTP/1.1 200 OK\r\nContent-Length: 1048577\r\n\r\n", wantText: "at most 1048576"},
		{name: "no header", answer: "HTTP/1.1 200 OK\r\nwhat\r\n\r\n", wantText: `header "what"`},
		{name: "another protocol", answer: "HTTP/2 200\r\n\r\n", wantText: `status line "HTTP/2 200"`},
		{name: "no status", answer: "HTTP/1.1 2x0 OK\r\n\r\n", wantText: "status line"},
		{name: "interim answer", answer: "HTTP/1.1 100 Continue\r\n\r\n", wantText: "status line"},
		{name: "long line", answer: "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("b", 5000), wantText: "a line of more than 4096 bytes"},
		{name: "many headers", answer: "HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", 70), wantText: "more than 64 headers"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, body, err := readAnswer(iotest.OneByteReader(strings.NewReader(tc.answer)))
			if expectUnread(t, err, tc.early, tc.wantText) {
				return
			}
			if err != nil || status != tc.status || string(body) != tc.body {
				t.Errorf("status %d, body %q, %v: want %d, %q", status, body, err, tc.status, tc.body)
			}
		})
	}
}

// If the plugin accepts an answer, its status is from 200 to 599 and its body is not
// larger than MaxAnswer. net/http reads the same body from an answer with that status and
// body.
func FuzzReadAnswer(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"))
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"))
	f.Add([]byte("HTTP/1.0 503\n\n"))
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\ncontent-length: 2\r\n\r\nhi"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		status, body, err := readAnswer(bytes.NewReader(raw))
		if err != nil {
			return
		}
		if status < 200 || status > 599 || len(body) > MaxAnswer {
			t.Fatalf("status %d and %d bytes are taken", status, len(body))
		}
		built := fmt.Sprintf("HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body)
		r, err := http.ReadResponse(bufio.NewReader(strings.NewReader(built)), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		again, err := io.ReadAll(r.Body)
		if status == http.StatusNoContent || status == http.StatusNotModified {
			return // net/http knows that those have no body
		}
		if err != nil || !bytes.Equal(again, body) {
			t.Errorf("net/http reads %q, %v: want %q", again, err, body)
		}
	})
}
