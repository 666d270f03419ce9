package cniproto

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
)

// The plugin parses the part of HTTP/1.1 (RFC 9112) that the daemon writes: a status line,
// headers, and a body whose length the headers give. It does not use net/http, which would
// cost time in every call.

const (
	maxHeaderLine = 4 << 10
	maxHeaders    = 64
	// maxLength is the largest accepted value of Content-Length, in bytes. A body of
	// more than MaxAnswer is refused and not read.
	maxLength = 1 << 40
)

// readAnswer reads an answer. Errors: *Error with CodeDecode if the answer is malformed;
// io.ErrUnexpectedEOF if it ends too early; otherwise the error of reading.
func readAnswer(from io.Reader) (status int, body []byte, err error) {
	status, body, err = readStatusAndBody(bufio.NewReaderSize(from, maxHeaderLine))
	if m, ok := errors.AsType[malformed](err); ok {
		err = &Error{Code: CodeDecode, Msg: "the daemon's answer is not understood: " + string(m)}
	}
	return status, body, err
}

func readStatusAndBody(in *bufio.Reader) (status int, body []byte, err error) {
	line, err := headerLine(in)
	if err != nil {
		return 0, nil, err
	}
	status, ok := parseStatus(string(line))
	if !ok {
		return 0, nil, malformed("status line " + quoted(string(line)))
	}
	length, err := readHeaders(in)
	switch {
	case err != nil:
		return 0, nil, err
	case length < 0:
		return 0, nil, malformed("no Content-Length")
	case length > MaxAnswer:
		return 0, nil, malformed("a Content-Length of " + strconv.FormatInt(length, 10) + ": must be at most " + strconv.Itoa(MaxAnswer))
	}
	if length <= maxHeaderLine {
		body, err = in.Peek(int(length)) // stays valid: nothing is read after it
	} else {
		body = make([]byte, length)
		_, err = io.ReadFull(in, body)
	}
	if err != nil {
		return 0, nil, unexpectedEOF(err)
	}
	return status, body, nil
}

// readHeaders reads to the empty line and returns the Content-Length, -1 if there is none.
func readHeaders(in *bufio.Reader) (length int64, err error) {
	length = -1
	for range maxHeaders {
		line, err := headerLine(in)
		if err != nil || len(line) == 0 {
			return length, err
		}
		name, value, ok := bytes.Cut(line, []byte(":"))
		switch {
		case !ok:
			return 0, malformed("header " + quoted(string(line)))
		case strings.EqualFold(string(name), "Transfer-Encoding"):
			return 0, malformed("header " + quoted(string(line)) + ": only Content-Length is expected")
		case strings.EqualFold(string(name), "Content-Length"):
			n, err := strconv.ParseUint(string(bytes.TrimSpace(value)), 10, 63)
			if err != nil || n > maxLength || (length >= 0 && length != int64(n)) {
				return 0, malformed("header " + quoted(string(line)) + ": must be one number of bytes")
			}
			length = int64(n)
		}
	}
	return 0, malformed("more than " + strconv.Itoa(maxHeaders) + " headers")
}

// headerLine reads a line and returns it without its line end. The slice is valid until
// the next read.
func headerLine(in *bufio.Reader) ([]byte, error) {
	raw, err := in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return nil, malformed("a line of more than " + strconv.Itoa(maxHeaderLine) + " bytes")
	}
	if err != nil {
		return nil, unexpectedEOF(err)
	}
	return bytes.TrimSuffix(raw[:len(raw)-1], []byte("\r")), nil
}

// parseStatus returns the code of a status line such as "HTTP/1.1 200 OK". It accepts
// codes from 200 to 599.
func parseStatus(line string) (int, bool) {
	rest, ok := strings.CutPrefix(line, "HTTP/1.")
	if !ok || len(rest) < 5 || rest[1] != ' ' || (len(rest) > 5 && rest[5] != ' ') {
		return 0, false
	}
	status, err := strconv.ParseUint(rest[2:5], 10, 16)
	return int(status), err == nil && status >= 200 && status <= 599
}

// malformed describes why a message cannot be parsed.
type malformed string

// Error returns the description.
func (m malformed) Error() string { return string(m) }

// unexpectedEOF returns err, with io.ErrUnexpectedEOF in place of io.EOF.
func unexpectedEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
