package cniproto

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
)

func headOf(r io.Reader) (Head, error) { return ReadHead(bufio.NewReaderSize(r, maxHeaderLine)) }

// expectUnread checks the error of a message that ends too early, or of which says
// names what is wrong. It reports whether the message is one of these.
func expectUnread(t *testing.T, err error, early bool, says string) bool {
	t.Helper()
	switch {
	case early:
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("error %v, want %v", err, io.ErrUnexpectedEOF)
		}
	case says != "":
		expectError(t, err, CodeDecode, says)
	}
	return early || says != ""
}

func TestReadHead(t *testing.T) {
	for _, tc := range []struct {
		name, request string
		want          Head
		early         bool
		says          string
	}{
		{name: "plain", request: "POST /v1/cni HTTP/1.1\r\nHost: x\r\ncontent-length:  2 \r\n\r\nhi", want: Head{"POST", "/v1/cni", 2}},
		{name: "no body", request: "GET /v1/status HTTP/1.0\n\n", want: Head{"GET", "/v1/status", 0}},
		{name: "more than is served", request: "POST / HTTP/1.1\r\nContent-Length: 1048577\r\n\r\n", want: Head{"POST", "/", 1048577}},
		{name: "nothing", early: true},
		{name: "half a line", request: "POST /v1", early: true},
		{name: "half the headers", request: "POST / HTTP/1.1\r\nContent-Le", early: true},
		{name: "no path", request: "POST HTTP/1.1\r\n\r\n", says: `request: first line "POST HTTP/1.1"`},
		{name: "no version", request: "GET /\r\n\r\n", says: "first line"},
		{name: "another protocol", request: "PRI * HTTP/2.0\r\n\r\n", says: "first line"},
		{name: "white space in the path", request: "GET / HTTP/1.1 HTTP/1.1\r\n\r\n", says: "first line"},
		{name: "chunked", request: "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", says: "Transfer-Encoding: chunked"},
		{name: "two lengths", request: "POST / HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n", says: `"Content-Length: 3"`},
		{name: "negative length", request: "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", says: "must be one number of bytes"},
		{name: "absurd length", request: "POST / HTTP/1.1\r\nContent-Length: 9223372036854775807\r\n\r\n", says: "must be one number of bytes"},
		{name: "no header", request: "POST / HTTP/1.1\r\nwhat\r\n\r\n", says: `header "what"`},
		{name: "long line", request: "POST /" + strings.Repeat("b", 5000), says: "a line of more than 4096 bytes"},
		{name: "many headers", request: "POST / HTTP/1.1\r\n" + strings.Repeat("A: b\r\n", 70), says: "more than 64 headers"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := headOf(iotest.OneByteReader(strings.NewReader(tc.request)))
			if expectUnread(t, err, tc.early, tc.says) {
				return
			}
			if err != nil || got != tc.want {
				t.Errorf("%+v, %v: want %+v", got, err, tc.want)
			}
		})
	}
}

// Of a request that both it and net/http take, it says the same.
func FuzzReadHead(f *testing.F) {
	f.Add([]byte("POST /v1/cni HTTP/1.1\r\nHost: fairlead\r\nContent-Length: 2\r\n\r\nhi"))
	f.Add([]byte("GET /v1/status HTTP/1.0\n\n"))
	f.Add([]byte("POST /v1/cni HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\ncontent-length: 2\r\n\r\nhi"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := headOf(bytes.NewReader(raw))
		if err != nil {
			return
		}
		if got.Length < 0 || got.Length > maxLength {
			t.Fatalf("a length of %d is taken", got.Length)
		}
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(raw)))
		if err != nil {
			return
		}
		if want := (Head{r.Method, r.RequestURI, r.ContentLength}); got != want {
			t.Errorf("%+v, net/http reads %+v", got, want)
		}
	})
}
