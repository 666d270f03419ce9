package cniproto

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
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
		{name: "result", answer: framed("{}", "{  }"), body: "{  }"},
		{name: "no body", answer: framed("{}", "")},
		{name: "CNI error", answer: framed(`{"error":{"code":11,"msg":"later","details":"x"}}`, ""), code: CodeTryAgainLater, wantText: "later; x"},
		{name: "a daemon that ends", answer: framed(`{"stopping":true}`, ""), err: ErrAway},
		{name: "another version", answer: "fairlead/2\n", err: ErrVersion},
		{name: "an older daemon", answer: "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", err: ErrVersion},
		{name: "a header that is none", answer: framed("what", ""), code: CodeDecode, wantText: `answer: header: "what"`},
		{name: "nothing", err: ErrLost},
		{name: "half an answer", answer: framed("{}", "{  }")[:22], err: ErrLost},
	} {
		t.Run(tc.name, func(t *testing.T) {
			socket := listen(t, func(conn net.Conn) {
				got, err := DecodeRequest(conn)
				if err != nil || got.DeadlineMS <= 0 || got.DeadlineMS > 10_000 {
					t.Errorf("request with deadline %d, %v: want one within 10 s", got.DeadlineMS, err)
				}
				got.DeadlineMS = 0
				if diff := cmp.Diff(sent, got); diff != "" {
					t.Errorf("request (-want +got):\n%s", diff)
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
		_, _ = io.WriteString(conn, framed(`{"error":{"code":999,"msg":"who"}}`, ""))
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
		_, err := DecodeRequest(conn)
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

// An answer is decoded as it was encoded. Any other bytes yield an error: no result is larger
// than MaxAnswer.
func FuzzDecodeAnswer(f *testing.F) {
	f.Add([]byte(framed("{}", "hi")))
	f.Add([]byte(framed(`{"error":{"code":11,"msg":"later"}}`, "")))
	f.Add([]byte(framed(`{"stopping":true}`, "")))
	f.Add([]byte("HTTP/1.1 503\n\n"))
	f.Add([]byte(preamble + "\xff\xff\xff\xff\x00\x00\x00\x03abc"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		result, err := DecodeAnswer(bytes.NewReader(raw))
		if err != nil {
			if len(result) > 0 {
				t.Errorf("result %q beside error %v", result, err)
			}
			return
		}
		if len(result) > MaxAnswer {
			t.Fatalf("%d bytes are taken", len(result))
		}
		again, err := DecodeAnswer(bytes.NewReader(Answer{Result: result}.Encode()))
		if len(result) <= MaxAnswer-2 && (err != nil || !bytes.Equal(again, result)) {
			t.Errorf("after a round trip %q, %v: want %q", again, err, result)
		}
	})
}

// A result that the plugin would not accept is replaced by an error.
func TestAnswerTooLarge(t *testing.T) {
	_, err := DecodeAnswer(bytes.NewReader(Answer{Result: make([]byte, MaxAnswer)}.Encode()))
	expectError(t, err, CodeInternal, "answer: larger than the limit of 1048576 bytes")
}
