package cniproto

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// A message of either direction is a frame:
//
//	"fairlead/1\n"   the protocol and its version
//	4 bytes          the length of the header, big endian
//	4 bytes          the length of the body, big endian
//	the header       one JSON object: Request or Answer
//	the body         any bytes: the network configuration, or the result
//
// The first bytes are a line of text, so that a peer that speaks another protocol refuses
// them at once, and a person can read them.

// preamble begins each frame. A change of the frame or of the meaning of a field changes the
// number. A new field needs no change: unknown fields are ignored.
const preamble = "fairlead/1\n"

// ErrVersion means that the peer does not speak this version of the protocol. While a node
// is upgraded, plugin and daemon may be of different releases.
var ErrVersion = errors.New("plugin and daemon speak different versions of their protocol, until the upgrade of the node is complete")

// encodeFrame returns a frame. It returns an *Error with CodeDecode if header and body have
// more than most bytes; what names the message.
func encodeFrame(what string, header any, body []byte, most int) ([]byte, error) {
	head, err := json.Marshal(header)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if len(head)+len(body) > most {
		return nil, tooLarge(what, most)
	}
	out := make([]byte, 0, len(preamble)+8+len(head)+len(body))
	out = append(out, preamble...)
	out = binary.BigEndian.AppendUint32(out, uint32(len(head))) //nolint:gosec // most is small
	out = binary.BigEndian.AppendUint32(out, uint32(len(body))) //nolint:gosec // most is small
	return append(append(out, head...), body...), nil
}

// decodeFrame reads a frame and decodes its header. It allocates nothing for a frame whose
// header and body have more than most bytes. Errors: ErrVersion if the first bytes are not
// the preamble; *Error with CodeDecode if the frame is too large or its header malformed;
// otherwise the error of reading, io.EOF if there is no byte, io.ErrUnexpectedEOF if the
// frame is not complete.
func decodeFrame(what string, in io.Reader, header any, most int) (body []byte, err error) {
	var start [len(preamble) + 8]byte
	n, err := io.ReadFull(in, start[:])
	if got := start[:min(n, len(preamble))]; !strings.HasPrefix(preamble, string(got)) {
		return nil, fmt.Errorf("%w: the %s begins with %q, not with %q", ErrVersion, what, got, preamble)
	}
	switch {
	case n == 0:
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%s: ends after %d bytes: %w", what, n, err)
	}
	head, all := binary.BigEndian.Uint32(start[len(preamble):]), uint64(binary.BigEndian.Uint32(start[len(preamble)+4:]))
	if all += uint64(head); all > uint64(most) { //nolint:gosec // most is positive
		return nil, tooLarge(what, most)
	}
	content := make([]byte, all)
	if n, err := io.ReadFull(in, content); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("%s: ends after %d of %d bytes: %w", what, n, all, err)
	}
	if err := decodeObject(what+": header", content[:head], header); err != nil {
		return nil, err
	}
	if content = content[head:]; len(content) == 0 {
		return nil, nil
	}
	return content, nil
}

func tooLarge(what string, most int) *Error {
	return &Error{Code: CodeDecode, Msg: fmt.Sprintf("%s: larger than the limit of %d bytes", what, most)}
}

// decodeObject decodes a JSON object. Errors are *Error with CodeDecode. They have the place
// of a syntax error, or the wrong field with its expected type; what names the text.
func decodeObject(what string, text []byte, into any) error {
	if string(text) == "{}" {
		return nil // the header of most answers: reflection would cost the plugin a tenth of its call
	}
	err := json.Unmarshal(text, into)
	syntax, isSyntax := errors.AsType[*json.SyntaxError](err)
	wrong, isType := errors.AsType[*json.UnmarshalTypeError](err)
	var msg string
	switch trimmed := bytes.TrimSpace(text); {
	case len(trimmed) == 0:
		msg = "empty: must be a JSON object"
	case trimmed[0] != '{':
		msg = fmt.Sprintf("%.256q: must be a JSON object", text)
	case isSyntax && endsEarly(text):
		msg = fmt.Sprintf("ends after %d bytes, before its JSON is complete", len(text))
	case isSyntax:
		msg = fmt.Sprintf("wrong JSON at byte %d: %v", syntax.Offset, err)
	case isType:
		msg = fmt.Sprintf("%s: must be %s, not %s", wrong.Field, wrong.Type, wrong.Value)
	case err != nil:
		msg = err.Error()
	default:
		return nil
	}
	return &Error{Code: CodeDecode, Msg: what + ": " + msg}
}

// endsEarly reports whether a text is the beginning of valid JSON and only its end is
// missing.
func endsEarly(text []byte) bool {
	err := json.NewDecoder(bytes.NewReader(text)).Decode(new(json.RawMessage))
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
