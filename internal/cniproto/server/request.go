package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"fairlead.dev/fairlead/internal/cniproto"
)

// decode reads a request that the plugin has sent or spooled. It does not validate the
// request. Errors are *cniproto.Error with CodeDecode.
func decode(body []byte) (cniproto.Request, error) {
	if bytes.IndexByte(body, 0) < 0 { // JSON contains no NUL
		return decodeOld(body)
	}
	return cniproto.DecodeRequest(body)
}

// decodeOld reads a request in the JSON form of older plugins. During the upgrade of a node
// such a plugin may wait for the daemon, or its DEL may be in the spool.
func decodeOld(body []byte) (cniproto.Request, error) {
	if len(body) > cniproto.MaxRequest {
		return cniproto.Request{}, cniproto.TooLarge("request")
	}
	var old struct {
		RequestID   string          `json:"requestID"`
		Verb        string          `json:"verb"`
		IPAM        string          `json:"ipam"`
		ContainerID string          `json:"containerID"`
		Netns       string          `json:"netns"`
		IfName      string          `json:"ifname"`
		Args        string          `json:"args"`
		Path        string          `json:"path"`
		Traceparent string          `json:"traceparent"`
		Tracestate  string          `json:"tracestate"`
		Baggage     string          `json:"baggage"`
		DeadlineMS  int64           `json:"deadlineMS"`
		Config      json.RawMessage `json:"config"`
	}
	if err := unmarshal(body, &old); err != nil {
		return cniproto.Request{}, &cniproto.Error{Code: cniproto.CodeDecode, Msg: "request: " + err.Error()}
	}
	return cniproto.Request{
		RequestID: old.RequestID, Verb: old.Verb, IPAM: old.IPAM, DeadlineMS: old.DeadlineMS, Config: old.Config,
		ContainerID: old.ContainerID, Netns: old.Netns, IfName: old.IfName, Args: old.Args, Path: old.Path,
		Traceparent: old.Traceparent, Tracestate: old.Tracestate, Baggage: old.Baggage,
	}, nil
}

// validate returns a *cniproto.Error if a field of the request is missing or wrong. A DEL
// is valid with any configuration; validate drops its configuration if it is not a JSON
// object.
func validate(r *cniproto.Request) error {
	if err := r.CheckEnvironment(); err != nil {
		return err
	}
	if r.Verb != cniproto.VerbDel {
		return checkConfig(r)
	}
	if !json.Valid(r.Config) || !bytes.HasPrefix(bytes.TrimSpace(r.Config), []byte("{")) {
		r.Config = nil
	}
	return nil
}

// checkConfig returns an error if the verb cannot be served with the configuration.
func checkConfig(r *cniproto.Request) error {
	const what = "network configuration: "
	if len(bytes.TrimSpace(r.Config)) == 0 {
		return &cniproto.Error{Code: cniproto.CodeDecode, Msg: what + "empty: must be a JSON object"}
	}
	var n struct {
		CNIVersion string `json:"cniVersion"`
		Name       string `json:"name"`
	}
	if err := unmarshal(r.Config, &n); err != nil {
		return &cniproto.Error{Code: cniproto.CodeDecode, Msg: what + err.Error()}
	}
	if !slices.Contains(cniproto.Versions, n.CNIVersion) {
		return &cniproto.Error{
			Code: cniproto.CodeIncompatibleVersion,
			Msg:  fmt.Sprintf("cniVersion: %.256q: must be one of %s", n.CNIVersion, strings.Join(cniproto.Versions, ", ")),
		}
	}
	// All versions have the same form, so that their texts sort like the versions.
	if first := since(r.Verb); n.CNIVersion < first {
		return &cniproto.Error{
			Code: cniproto.CodeIncompatibleVersion,
			Msg:  fmt.Sprintf("cniVersion: %q: has no %s, which needs at least %s", n.CNIVersion, r.Verb, first),
		}
	}
	return cniproto.CheckNetworkName(n.Name)
}

// since returns the first version of CNI that has the verb, empty if all Versions have it.
func since(verb string) string {
	switch verb {
	case cniproto.VerbCheck:
		return "0.4.0"
	case cniproto.VerbStatus, cniproto.VerbGC:
		return "1.1.0"
	default:
		return ""
	}
}

// unmarshal reads a JSON object. An error has the place of the syntax error, or the wrong
// field with its expected type.
func unmarshal(text []byte, into any) error {
	err := json.Unmarshal(text, into)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		if endsEarly(text) {
			return fmt.Errorf("ends after %d bytes, before its JSON is complete", len(text))
		}
		return fmt.Errorf("wrong JSON at byte %d: %w", syntax.Offset, err)
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && wrong.Field != "" {
		return fmt.Errorf("%s: must be %s, not %s", wrong.Field, wrong.Type, wrong.Value)
	}
	if err != nil || !bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		return fmt.Errorf("must be a JSON object, not %.256q", text)
	}
	return nil
}

// endsEarly reports whether a text is the beginning of valid JSON and only its end is
// missing.
func endsEarly(text []byte) bool {
	err := json.NewDecoder(bytes.NewReader(text)).Decode(new(json.RawMessage))
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
