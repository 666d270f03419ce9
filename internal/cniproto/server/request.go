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

// decode reads a request as the plugin sends and spools it. Errors are
// *cniproto.Error of CodeDecode. What it returns is not validated.
func decode(body []byte) (cniproto.Request, error) {
	if bytes.IndexByte(body, 0) < 0 { // as in all JSON
		return decodeOld(body)
	}
	return cniproto.DecodeRequest(body)
}

// decodeOld reads a request as the plugin wrote it before it copied what the runtime
// gives it. While a node is upgraded there may be such a one that waits for the daemon,
// or a DEL of its in the spool.
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

// validate says what is missing or wrong in a request, as a *cniproto.Error. A DEL is
// served with any configuration, and what is no JSON object is left out of it.
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

// checkConfig says what of the configuration the verb cannot be served with.
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
	// The versions are of one form, so their order is that of their text.
	if first := since(r.Verb); n.CNIVersion < first {
		return &cniproto.Error{
			Code: cniproto.CodeIncompatibleVersion,
			Msg:  fmt.Sprintf("cniVersion: %q: does not have %s, which came with %s", n.CNIVersion, r.Verb, first),
		}
	}
	return cniproto.CheckNetworkName(n.Name)
}

// since is the version of CNI that a verb came with, empty if all Versions have it.
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

// unmarshal reads a JSON object. An error says where the text is wrong, or which field
// must be what.
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

// endsEarly tells whether nothing is wrong with a text but that it ends.
func endsEarly(text []byte) bool {
	err := json.NewDecoder(bytes.NewReader(text)).Decode(new(json.RawMessage))
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
