package cniproto

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
)

// Of HTTP/1.1 (RFC 9112) the plugin reads what the daemon writes: a status line,
// headers, and a body of the length that the headers tell. net/http it does without, as
// it would pay for it on every call.

const (
	maxHeaderLine = 4 << 10
	maxHeaders    = 64
	// maxLength bounds what a message may say of its length, in bytes. That much is
	// not read of it.
	maxLength = 1 << 40
)

// readAnswer reads an answer. What is none is an *Error of CodeDecode; any other
// error is one of reading, io.ErrUnexpectedEOF when the answer ends too early.
func readAnswer(from io.Reader) (status int, body []byte, err error) {
	status, body, err = readStatusAndBody(bufio.NewReaderSize(from, maxHeaderLine))
	if s, ok := errors.AsType[strange](err); ok {
		err = &Error{Code: CodeDecode, Msg: "the daemon's answer is not understood: " + string(s)}
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
		return 0, nil, strange("status line " + quoted(string(line)))
	}
	length, err := readHeaders(in)
	switch {
	case err != nil:
		return 0, nil, err
	case length < 0:
		return 0, nil, strange("no Content-Length")
	case length > MaxAnswer:
		return 0, nil, strange("a Content-Length of " + strconv.FormatInt(length, 10) + ": must be at most " + strconv.Itoa(MaxAnswer))
	}
	if length <= maxHeaderLine {
		body, err = in.Peek(int(length)) // nothing else is read into the buffer
	} else {
		body = make([]byte, length)
		_, err = io.ReadFull(in, body)
	}
	if err != nil {
		return 0, nil, early(err)
	}
	return status, body, nil
}

// readHeaders reads to the empty line and returns the Content-Length, -1 when there
// is none.
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
			return 0, strange("header " + quoted(string(line)))
		case strings.EqualFold(string(name), "Transfer-Encoding"):
			return 0, strange("header " + quoted(string(line)) + ": only Content-Length is expected")
		case strings.EqualFold(string(name), "Content-Length"):
			n, err := strconv.ParseUint(string(bytes.TrimSpace(value)), 10, 63)
			if err != nil || n > maxLength || (length >= 0 && length != int64(n)) {
				return 0, strange("header " + quoted(string(line)) + ": must be one number of bytes")
			}
			length = int64(n)
		}
	}
	return 0, strange("more than " + strconv.Itoa(maxHeaders) + " headers")
}

// headerLine reads a line without its end. It is good until the next one is read.
func headerLine(in *bufio.Reader) ([]byte, error) {
	raw, err := in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return nil, strange("a line of more than " + strconv.Itoa(maxHeaderLine) + " bytes")
	}
	if err != nil {
		return nil, early(err)
	}
	return bytes.TrimSuffix(raw[:len(raw)-1], []byte("\r")), nil
}

// parseStatus takes the code out of "HTTP/1.1 200 OK".
func parseStatus(line string) (int, bool) {
	rest, ok := strings.CutPrefix(line, "HTTP/1.")
	if !ok || len(rest) < 5 || rest[1] != ' ' || (len(rest) > 5 && rest[5] != ' ') {
		return 0, false
	}
	status, err := strconv.ParseUint(rest[2:5], 10, 16)
	return int(status), err == nil && status >= 200 && status <= 599
}

// strange is what is not as it must be in a message.
type strange string

// Error is part of error.
func (s strange) Error() string { return string(s) }

func early(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
