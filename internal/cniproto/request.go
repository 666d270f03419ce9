package cniproto

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The verbs of CNI. VERSION is answered by the plugin itself and never sent.
const (
	VerbAdd     = "ADD"
	VerbDel     = "DEL"
	VerbCheck   = "CHECK"
	VerbStatus  = "STATUS"
	VerbGC      = "GC"
	VerbVersion = "VERSION"
)

// Verbs are those that are sent to the daemon.
var Verbs = []string{VerbAdd, VerbCheck, VerbDel, VerbGC, VerbStatus}

// IPAMPrograms are the names under which the plugin gives addresses to
// interfaces of other plugins.
var IPAMPrograms = []string{"fairlead-ipam", "whereabouts"}

// Versions are the CNI versions that are spoken, the newest last.
var Versions = []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// since is the version of CNI that a verb came with, for those that Versions do
// not all have.
var since = map[string]string{VerbCheck: "0.4.0", VerbStatus: "1.1.0", VerbGC: "1.1.0"}

// maxContainerID bounds the container ID, which is part of file names. Runtimes
// use 64 bytes.
const maxContainerID = 200

// Request is one call of the plugin.
type Request struct {
	// RequestID is the same when a request is sent a second time.
	RequestID string `json:"requestID,omitempty"`
	// Verb is CNI_COMMAND, one of Verbs.
	Verb string `json:"verb,omitempty"`
	// IPAM is the name under which the plugin was executed, one of
	// IPAMPrograms, when it is asked for addresses alone; else empty.
	IPAM string `json:"ipam,omitempty"`
	// ContainerID, Netns, IfName, Args and Path are the variables CNI_CONTAINERID,
	// CNI_NETNS, CNI_IFNAME, CNI_ARGS and CNI_PATH.
	ContainerID string `json:"containerID,omitempty"`
	Netns       string `json:"netns,omitempty"`
	IfName      string `json:"ifname,omitempty"`
	Args        string `json:"args,omitempty"`
	Path        string `json:"path,omitempty"`
	// Traceparent, Tracestate and Baggage are the variables of W3C Trace Context
	// that libcni sets from version 1.3.1.
	Traceparent string `json:"traceparent,omitempty"`
	Tracestate  string `json:"tracestate,omitempty"`
	Baggage     string `json:"baggage,omitempty"`
	// DeadlineMS is in how many milliseconds the plugin gives up. Zero or less
	// leaves it to Timeout.
	DeadlineMS int64 `json:"deadlineMS,omitempty"`
	// Config is the network configuration that the runtime gave on standard
	// input, unchanged. A DEL may have none.
	Config json.RawMessage `json:"config,omitempty"`
}

// ParseRequest makes a request of what a runtime hands a plugin: the verb
// (CNI_COMMAND), the other variables of the environment, and standard input.
// Errors are *Error and name what is missing or wrong. A DEL is taken with any
// configuration or none, as long as the container ID is right: what cannot be
// read of it is left out.
func ParseRequest(verb string, getenv func(string) string, stdin io.Reader) (Request, error) {
	r := Request{
		RequestID:   strconv.FormatUint(rand.Uint64(), 16),
		Verb:        verb,
		ContainerID: getenv("CNI_CONTAINERID"),
		Netns:       getenv("CNI_NETNS"),
		IfName:      getenv("CNI_IFNAME"),
		Args:        getenv("CNI_ARGS"),
		Path:        getenv("CNI_PATH"),
		Traceparent: getenv("TRACEPARENT"),
		Tracestate:  getenv("TRACESTATE"),
		Baggage:     getenv("BAGGAGE"),
	}
	if err := r.checkEnvironment(); err != nil {
		return Request{}, err
	}
	config, err := io.ReadAll(io.LimitReader(stdin, MaxRequest+1))
	switch {
	case verb == VerbDel:
		if err == nil && len(config) <= MaxRequest && isObject(config) {
			r.Config = config
		}
		return r, nil
	case err != nil:
		return Request{}, &Error{Code: CodeIO, Msg: "network configuration: standard input cannot be read: " + err.Error()}
	case len(config) > MaxRequest:
		return Request{}, TooLarge("network configuration")
	}
	r.Config = config
	return r, r.checkConfig()
}

// ParseVersion reads what a runtime gives a VERSION on standard input and returns
// its cniVersion, which may be missing, as may everything. Errors are *Error.
func ParseVersion(stdin io.Reader) (string, error) {
	config, err := io.ReadAll(io.LimitReader(stdin, MaxRequest))
	if err != nil {
		return "", &Error{Code: CodeIO, Msg: "standard input cannot be read: " + err.Error()}
	}
	if len(bytes.TrimSpace(config)) == 0 {
		return "", nil
	}
	n, err := Request{Config: config}.network()
	return n.CNIVersion, err
}

// TooLarge is the error for something that is larger than MaxRequest.
func TooLarge(what string) *Error {
	return &Error{Code: CodeDecode, Msg: fmt.Sprintf("%s: larger than the limit of %d bytes", what, MaxRequest)}
}

// DecodeRequest reads a request as it is sent over the socket. Errors are
// *Error of CodeDecode. Fields that it does not know are those of a newer
// plugin and left out. What it returns is not validated.
func DecodeRequest(body []byte) (Request, error) {
	if len(body) > MaxRequest {
		return Request{}, TooLarge("request")
	}
	var r Request
	if err := json.Unmarshal(body, &r); err != nil {
		return Request{}, decodeError("request", body, err)
	}
	return r, nil
}

// Validate says what is missing or wrong in a request, as an *Error. It is what
// both sides of the socket demand.
func (r Request) Validate() error {
	if err := r.checkEnvironment(); err != nil {
		return err
	}
	if r.Verb == VerbDel {
		return nil
	}
	return r.checkConfig()
}

// checkEnvironment follows the CNI specification 1.1.0, section 2, and for DEL
// demands nothing but the container ID.
func (r Request) checkEnvironment() error {
	switch {
	case r.Verb == "":
		return environment("CNI_COMMAND: missing: must be one of %s or %s", strings.Join(Verbs, ", "), VerbVersion)
	case !slices.Contains(Verbs, r.Verb):
		return environment("CNI_COMMAND: %q: must be one of %s or %s", r.Verb, strings.Join(Verbs, ", "), VerbVersion)
	}
	var missing []string
	demand := func(name, value string) {
		if value == "" {
			missing = append(missing, name)
		}
	}
	switch r.Verb {
	case VerbAdd, VerbCheck:
		demand("CNI_CONTAINERID", r.ContainerID)
		demand("CNI_NETNS", r.Netns)
		demand("CNI_IFNAME", r.IfName)
	case VerbDel:
		demand("CNI_CONTAINERID", r.ContainerID)
	}
	if len(missing) > 0 {
		return environment("%s: missing: %s needs it", strings.Join(missing, ", "), r.Verb)
	}
	if !validContainerID(r.ContainerID) {
		return environment("CNI_CONTAINERID: %q: must start with a letter or a digit, "+
			"go on with those and the characters _ . - and have at most %d", clip(r.ContainerID), maxContainerID)
	}
	if !validIfName(r.IfName) {
		return environment("CNI_IFNAME: %q: must have 1 to 15 characters, not be . or .. "+
			"and contain neither / nor : nor white space", clip(r.IfName))
	}
	return nil
}

func environment(format string, args ...any) error {
	return &Error{Code: CodeInvalidEnvironment, Msg: fmt.Sprintf(format, args...)}
}

// clip keeps a wrong value from making a message of any length.
func clip(s string) string {
	const most = 256
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}

// validContainerID reports whether id is empty or matches the specification's
// [a-zA-Z0-9][a-zA-Z0-9_.-]*, which a network's name does too.
func validContainerID(id string) bool {
	for i := range len(id) {
		c := id[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case i > 0 && (c == '_' || c == '.' || c == '-'):
		default:
			return false
		}
	}
	return len(id) <= maxContainerID
}

// validIfName reports whether name is empty or one that Linux takes for an
// interface.
func validIfName(name string) bool {
	wrong := func(r rune) bool { return r == '/' || r == ':' || r == 0 || unicode.IsSpace(r) }
	return len(name) <= 15 && name != "." && name != ".." && utf8.ValidString(name) && !strings.ContainsFunc(name, wrong)
}

// network is what the plugin has to know of a network configuration.
type network struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	Socket     string `json:"socket"`
	Spool      string `json:"spool"`
}

// network reads the configuration; errors are *Error of CodeDecode.
func (r Request) network() (network, error) {
	const what = "network configuration"
	if len(bytes.TrimSpace(r.Config)) == 0 {
		return network{}, &Error{Code: CodeDecode, Msg: what + ": empty: must be a JSON object"}
	}
	if valid := json.Valid(r.Config); valid && bytes.TrimSpace(r.Config)[0] != '{' {
		return network{}, &Error{Code: CodeDecode, Msg: fmt.Sprintf("%s: %q: must be a JSON object", what, clip(string(r.Config)))}
	} else if valid {
		if n, ok := scanNetwork(string(r.Config)); ok {
			return n, nil
		}
	}
	var n network
	if err := json.Unmarshal(r.Config, &n); err != nil {
		return network{}, decodeError(what, r.Config, err)
	}
	return n, nil
}

func (r Request) checkConfig() error {
	n, err := r.network()
	if err != nil {
		return err
	}
	if !slices.Contains(Versions, n.CNIVersion) {
		return &Error{
			Code: CodeIncompatibleVersion,
			Msg:  fmt.Sprintf("cniVersion: %q: must be one of %s", clip(n.CNIVersion), strings.Join(Versions, ", ")),
		}
	}
	// The versions are of one form, so their order is that of their text.
	if first := since[r.Verb]; n.CNIVersion < first {
		return &Error{
			Code: CodeIncompatibleVersion,
			Msg:  fmt.Sprintf("cniVersion: %q: does not have %s, which came with %s", n.CNIVersion, r.Verb, first),
		}
	}
	if n.Name == "" || !validContainerID(n.Name) {
		return &Error{Code: CodeInvalidConfig, Msg: fmt.Sprintf("name: %q: the network's name is required, must start with a letter or a digit, "+
			"go on with those and the characters _ . - and have at most %d", clip(n.Name), maxContainerID)}
	}
	return nil
}

// CNIVersion returns the version of the configuration if it is one of Versions,
// else an empty string.
func (r Request) CNIVersion() string {
	if n, err := r.network(); err == nil && slices.Contains(Versions, n.CNIVersion) {
		return n.CNIVersion
	}
	return ""
}

// Endpoint is where the daemon is, and what is used in its absence.
type Endpoint struct {
	// Socket of the daemon, Spool (a directory) and Heartbeat (a file) are
	// absolute paths.
	Socket, Spool, Heartbeat string
}

// maxSocket is what fits into a sockaddr_un.
const maxSocket = 107

// Endpoint reads from the configuration where the daemon is. An error is an
// *Error. For a DEL there is none: what the configuration does not say is at its
// default.
func (r Request) Endpoint() (Endpoint, error) {
	n, err := r.network()
	if err == nil && r.IPAM != "" {
		n, err = r.ipamNetwork()
	}
	if err == nil {
		err = n.check()
	}
	switch {
	case err == nil:
	case r.Verb == VerbDel:
		n = network{Socket: DefaultSocket}
	default:
		return Endpoint{}, err
	}
	dir := filepath.Dir(n.Socket)
	if n.Spool == "" {
		n.Spool = filepath.Join(dir, SpoolDir)
	}
	return Endpoint{Socket: n.Socket, Spool: n.Spool, Heartbeat: filepath.Join(dir, HeartbeatFile)}, nil
}

// ipamNetwork reads where the daemon is from the ipam section, the only part of
// another plugin's configuration that is ours: ipam.socket, else the default.
func (r Request) ipamNetwork() (network, error) {
	var c struct {
		IPAM struct {
			Socket string `json:"socket"`
		} `json:"ipam"`
	}
	if err := json.Unmarshal(r.Config, &c); err != nil {
		return network{}, decodeError("network configuration", r.Config, err)
	}
	if c.IPAM.Socket == "" {
		c.IPAM.Socket = DefaultSocket
	}
	return network{Socket: c.IPAM.Socket}, nil
}

func (n network) check() error {
	const example = `for example "socket": "` + DefaultSocket + `"`
	switch {
	case n.Socket == "":
		return &Error{Code: CodeInvalidConfig, Msg: "socket: missing: must be the path of the daemon's socket, " + example}
	case !filepath.IsAbs(n.Socket):
		return &Error{Code: CodeInvalidConfig, Msg: fmt.Sprintf("socket: %q: must be an absolute path, %s", clip(n.Socket), example)}
	case len(n.Socket) > maxSocket:
		return &Error{Code: CodeInvalidConfig, Msg: fmt.Sprintf("socket: %q: must have at most %d bytes", clip(n.Socket), maxSocket)}
	case n.Spool != "" && !filepath.IsAbs(n.Spool):
		return &Error{Code: CodeInvalidConfig, Msg: fmt.Sprintf("spool: %q: must be an absolute path of a directory", clip(n.Spool))}
	}
	return nil
}

func isObject(raw []byte) bool {
	raw = bytes.TrimSpace(raw)
	return len(raw) > 0 && raw[0] == '{' && json.Valid(raw)
}

// decodeError tells where JSON is wrong, or that it ends too early.
func decodeError(what string, raw []byte, err error) *Error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	msg := what + ": " + err.Error()
	switch {
	case errors.As(err, &syntax) && syntax.Offset >= int64(len(raw)):
		msg = fmt.Sprintf("%s: ends after %d bytes, before its JSON is complete", what, len(raw))
	case errors.As(err, &syntax):
		msg = fmt.Sprintf("%s: wrong JSON at byte %d: %v", what, syntax.Offset, err)
	case errors.As(err, &kind) && kind.Field != "":
		msg = fmt.Sprintf("%s: %s: must be %s, not %s", what, kind.Field, kind.Type, kind.Value)
	case errors.As(err, &kind):
		msg = fmt.Sprintf("%s: must be a JSON object, not %s", what, kind.Value)
	}
	return &Error{Code: CodeDecode, Msg: msg}
}
