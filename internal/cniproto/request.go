package cniproto

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The verbs of CNI. The plugin answers VERSION itself and never sends it.
const (
	VerbAdd     = "ADD"
	VerbDel     = "DEL"
	VerbCheck   = "CHECK"
	VerbStatus  = "STATUS"
	VerbGC      = "GC"
	VerbVersion = "VERSION"
)

// Verbs are the verbs that the plugin sends to the daemon.
var Verbs = []string{VerbAdd, VerbCheck, VerbDel, VerbGC, VerbStatus}

// IPAMPrograms are the program names under which the plugin acts as an IPAM plugin: it
// gives addresses to interfaces of other plugins.
var IPAMPrograms = []string{"fairlead-ipam", "whereabouts"}

// Versions are the supported CNI versions, the newest last.
var Versions = []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// maxContainerID is the largest length of a container ID, in bytes. The ID is part of file
// names. Runtimes use 64 bytes. The text of idRule repeats the limit.
const maxContainerID = 200

// idRule describes the IDs that validContainerID accepts.
const idRule = "must start with a letter or a digit, go on with those and the characters _ . - and have at most 200"

// Request is one call of the plugin.
type Request struct {
	// RequestID identifies the call. It stays the same if the request is sent again.
	RequestID string
	// Verb is CNI_COMMAND, one of Verbs.
	Verb string
	// IPAM is the program name, one of IPAMPrograms, if the plugin acts as an IPAM
	// plugin; otherwise it is empty.
	IPAM string
	// ContainerID, Netns, IfName, Args and Path are the variables CNI_CONTAINERID,
	// CNI_NETNS, CNI_IFNAME, CNI_ARGS and CNI_PATH.
	ContainerID string
	Netns       string
	IfName      string
	Args        string
	Path        string
	// Traceparent, Tracestate and Baggage are the variables of W3C Trace Context
	// that libcni sets from version 1.3.1.
	Traceparent string
	Tracestate  string
	Baggage     string
	// DeadlineMS is the time after which the plugin gives up, in milliseconds. If it is
	// zero or less, or larger than Timeout of the verb, Timeout applies.
	DeadlineMS int64
	// Config is the network configuration from standard input, unchanged. A DEL may
	// have none.
	Config []byte
}

const (
	deadlineVariable = "FAIRLEAD_DEADLINE_MS"
	// ownPrefix is the prefix of the variables that the plugin adds to the runtime's.
	ownPrefix = "FAIRLEAD_"
)

// variable is an environment variable, with its value in a request.
type variable struct {
	name  string
	value *string
}

// variables returns all variables of a request except its deadline. Variables that the
// plugin sets come first.
func (r *Request) variables() [11]variable {
	return [...]variable{
		{ownPrefix + "REQUEST_ID", &r.RequestID},
		{ownPrefix + "IPAM", &r.IPAM},
		{"CNI_COMMAND", &r.Verb},
		{"CNI_CONTAINERID", &r.ContainerID},
		{"CNI_NETNS", &r.Netns},
		{"CNI_IFNAME", &r.IfName},
		{"CNI_ARGS", &r.Args},
		{"CNI_PATH", &r.Path},
		{"TRACEPARENT", &r.Traceparent},
		{"TRACESTATE", &r.Tracestate},
		{"BAGGAGE", &r.Baggage},
	}
}

// Encode returns the form of a request that is sent and spooled. Empty variables are left
// out. A value ends at its first NUL, as in an environment.
func (r Request) Encode() []byte {
	return r.append(make([]byte, 0, len(r.Config)+usualRest))
}

// usualRest is larger than the variables of most requests, in bytes.
const usualRest = 2 << 10

// append appends the encoded request to out.
func (r *Request) append(out []byte) []byte {
	for _, v := range r.variables() {
		if value, _, _ := strings.Cut(*v.value, "\x00"); value != "" {
			out = append(append(append(append(out, v.name...), '='), value...), 0)
		}
	}
	if r.DeadlineMS != 0 {
		out = append(strconv.AppendInt(append(out, deadlineVariable+"="...), r.DeadlineMS, 10), 0)
	}
	return append(append(out, 0), r.Config...)
}

// DecodeRequest is the inverse of Encode. It ignores unknown variables, which a newer
// plugin may send. It does not validate the request. Errors are *Error with CodeDecode.
func DecodeRequest(body []byte) (r Request, err error) {
	if len(body) > MaxRequest {
		return r, TooLarge("request")
	}
	known := r.variables()
	for rest := body; ; {
		pair, after, whole := bytes.Cut(rest, []byte{0})
		switch {
		case !whole:
			return Request{}, &Error{Code: CodeDecode, Msg: "request: ends after " + strconv.Itoa(len(body)) + " bytes, before the end of its variables"}
		case len(pair) == 0:
			r.Config = bytes.Clone(after) // a slice of body would keep all of body in memory
			return r, nil
		}
		name, value, _ := strings.Cut(string(pair), "=")
		if !utf8.ValidString(value) {
			value = string([]rune(value)) // U+FFFD replaces each byte that is not UTF-8
		}
		if name == deadlineVariable {
			if r.DeadlineMS, err = strconv.ParseInt(value, 10, 64); err != nil {
				return Request{}, &Error{Code: CodeDecode, Msg: "request: " + name + ": " + quoted(value) + ": must be a number of milliseconds"}
			}
		}
		for _, v := range known {
			if v.name == name {
				*v.value = value
			}
		}
		rest = after
	}
}

// Call is the input of the plugin from a runtime.
type Call struct {
	// Program is the name under which the plugin was executed, without directory.
	Program string
	// Getenv returns an environment variable, empty if it is not set.
	Getenv func(name string) string
	// Stdin is the network configuration.
	Stdin io.Reader
}

// Parse fills r from a call and returns the endpoint of the daemon, the only part of the
// configuration that it interprets. Errors are *Error and name the missing or wrong field;
// r then has the values that were read before the error. A DEL with a valid environment is
// accepted with any configuration or none: if the configuration names no valid socket,
// Parse returns DefaultEndpoint.
func (r *Request) Parse(c Call) (at Endpoint, err error) {
	r.RequestID = strconv.FormatUint(rand.Uint64(), 16)
	for _, v := range r.variables() {
		if !strings.HasPrefix(v.name, ownPrefix) {
			*v.value = c.Getenv(v.name)
		}
	}
	if slices.Contains(IPAMPrograms, c.Program) {
		r.IPAM = c.Program
	}
	if err := r.CheckEnvironment(); err != nil {
		return at, err
	}
	r.Config, err = readConfig(c.Stdin)
	if err == nil {
		at, err = r.endpoint()
	}
	if err != nil && r.Verb == VerbDel {
		return DefaultEndpoint(), nil
	}
	return at, err
}

// readConfig reads the network configuration. It returns nil with an error.
func readConfig(stdin io.Reader) ([]byte, error) {
	config, err := readAll(stdin)
	if err != nil {
		return nil, &Error{Code: CodeIO, Msg: "network configuration: standard input cannot be read: " + err.Error()}
	}
	if len(config) > MaxRequest {
		return nil, TooLarge("network configuration")
	}
	return config, nil
}

// usualConfig is larger than most configurations, in bytes.
const usualConfig = 16 << 10

// readAll reads to the end, but at most one byte more than MaxRequest. The first buffer is
// large enough for most configurations, because each page of memory that a new process
// touches costs time.
func readAll(in io.Reader) ([]byte, error) {
	config := make([]byte, usualConfig)
	n, err := io.ReadFull(in, config)
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return config[:n], nil
	case err != nil:
		return nil, err
	}
	rest, err := io.ReadAll(io.LimitReader(in, MaxRequest+1-usualConfig))
	return append(config, rest...), err
}

// AnswerVersion returns the result of a VERSION. It repeats the cniVersion of the
// configuration on standard input. If there is no cniVersion or no configuration, it
// returns the newest version instead. Errors are *Error.
func AnswerVersion(stdin io.Reader) ([]byte, error) {
	config, err := readConfig(stdin)
	if err != nil {
		return nil, err
	}
	text := string(config)
	if strings.TrimSpace(text) != "" {
		if err := checkObject(text); err != nil {
			return nil, err
		}
	}
	version := lookupString(text, "cniVersion")
	if version == "" {
		version = Versions[len(Versions)-1]
	}
	out := appendQuoted([]byte(`{"cniVersion":`), version)
	out = append(out, `,"supportedVersions":["`...)
	out = append(out, strings.Join(Versions, `","`)...)
	return append(out, `"]}`...), nil
}

// TooLarge returns the error for a text that is larger than MaxRequest; what names it.
func TooLarge(what string) *Error {
	return &Error{Code: CodeDecode, Msg: what + ": larger than the limit of " + strconv.Itoa(MaxRequest) + " bytes"}
}

// CheckEnvironment returns an *Error if a variable of the request is missing or wrong. It
// follows the CNI specification 1.1.0, section 2. For DEL it requires only the container
// ID. Both sides of the socket call it; the plugin does because it names spool files after
// the variables.
func (r *Request) CheckEnvironment() error {
	switch {
	case r.Verb == "":
		return environmentError("CNI_COMMAND: missing: must be one of " + strings.Join(Verbs, ", ") + " or " + VerbVersion)
	case !slices.Contains(Verbs, r.Verb):
		return environmentError("CNI_COMMAND: " + quoted(r.Verb) + ": must be one of " + strings.Join(Verbs, ", ") + " or " + VerbVersion)
	}
	var missing []string
	require := func(name, value string) {
		if value == "" {
			missing = append(missing, name)
		}
	}
	switch r.Verb {
	case VerbAdd, VerbCheck:
		require("CNI_CONTAINERID", r.ContainerID)
		require("CNI_NETNS", r.Netns)
		require("CNI_IFNAME", r.IfName)
	case VerbDel:
		require("CNI_CONTAINERID", r.ContainerID)
	}
	if len(missing) > 0 {
		return environmentError(strings.Join(missing, ", ") + ": missing: " + r.Verb + " needs it")
	}
	if !validContainerID(r.ContainerID) {
		return environmentError("CNI_CONTAINERID: " + quoted(r.ContainerID) + ": " + idRule)
	}
	if !validIfName(r.IfName) {
		return environmentError("CNI_IFNAME: " + quoted(r.IfName) + ": must have 1 to 15 characters, not be . or .. " +
			"and contain neither / nor : nor white space")
	}
	return nil
}

// environmentError returns the error for a wrong variable.
func environmentError(msg string) error { return &Error{Code: CodeInvalidEnvironment, Msg: msg} }

// clip limits the length of a wrong value in a message.
func clip(s string) string {
	const most = 256
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}

// quoted returns a wrong value as it appears in a message.
func quoted(s string) string { return strconv.Quote(clip(s)) }

// validContainerID reports whether id is empty, or has at most maxContainerID bytes and
// matches [a-zA-Z0-9][a-zA-Z0-9_.-]*. The CNI specification has this pattern for container
// IDs and for names of networks.
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

// CheckNetworkName returns an *Error if the name of a network is missing or wrong.
func CheckNetworkName(name string) error {
	if name == "" || !validContainerID(name) {
		return &Error{Code: CodeInvalidConfig, Msg: "name: " + quoted(name) + ": the network's name is required, " + idRule}
	}
	return nil
}

// validIfName reports whether name is empty or a name that Linux accepts for an interface.
func validIfName(name string) bool {
	wrong := func(r rune) bool { return r == '/' || r == ':' || r == 0 || unicode.IsSpace(r) }
	return len(name) <= 15 && name != "." && name != ".." && utf8.ValidString(name) && !strings.ContainsFunc(name, wrong)
}

// CNIVersion returns the version of the configuration if it is one of Versions, otherwise
// an empty string.
func (r *Request) CNIVersion() string {
	value, open := lookup(string(r.Config), "cniVersion")
	if version := unquote(value); open == 0 && slices.Contains(Versions, version) {
		return version
	}
	return ""
}

// Endpoint has the paths by which the plugin reaches the daemon, or acts in its absence.
type Endpoint struct {
	// Socket is the absolute path of the daemon's socket. Spool (a directory) and
	// Heartbeat (a file) are the absolute paths of its neighbours.
	Socket, Spool, Heartbeat string
}

// DefaultEndpoint returns the endpoint that applies if the configuration names no socket.
func DefaultEndpoint() Endpoint { return endpointAt(DefaultSocket()) }

func endpointAt(socket string) Endpoint {
	dir := path.Dir(socket)
	return Endpoint{Socket: socket, Spool: path.Join(dir, SpoolDir), Heartbeat: path.Join(dir, HeartbeatFile)}
}

// endpoint returns the endpoint that the configuration names. In another plugin's
// configuration only the ipam section belongs to Fairlead; the socket is optional there.
// Errors are *Error.
func (r *Request) endpoint() (Endpoint, error) {
	text := string(r.Config)
	if err := checkObject(text); err != nil {
		return Endpoint{}, err
	}
	var socket, spool string
	if r.IPAM != "" {
		if socket = lookupString(text, "ipam", "socket"); socket == "" {
			socket = DefaultSocket()
		}
	} else {
		socket, spool = lookupString(text, "socket"), lookupString(text, "spool")
	}
	at := endpointAt(socket)
	if r.Verb == VerbDel {
		spool = "" // a wrong spool in the configuration must not fail a DEL
	}
	return at, at.check(spool)
}

// checkObject returns an *Error if lookup cannot search the configuration: it is empty, no
// JSON object, or cut off.
func checkObject(text string) error {
	wrong := func(what string) error {
		return &Error{Code: CodeDecode, Msg: "network configuration: " + what}
	}
	switch trimmed := strings.TrimSpace(text); {
	case trimmed == "":
		return wrong("empty: must be a JSON object")
	case trimmed[0] != '{':
		return wrong(quoted(text) + ": must be a JSON object")
	}
	if _, open := lookup(text); open > 0 {
		return wrong("ends after " + strconv.Itoa(len(text)) + " bytes, before its JSON is complete")
	}
	return nil
}

// maxSocket is the longest path that fits into a sockaddr_un, in bytes.
const maxSocket = 107

// check returns an *Error if the socket of the endpoint, or the configured spool, is wrong.
func (at Endpoint) check(spool string) error {
	example := `for example "socket": "` + DefaultSocket() + `"`
	wrong := func(msg string) error { return &Error{Code: CodeInvalidConfig, Msg: msg} }
	switch {
	case at.Socket == "":
		return wrong("socket: missing: must be the path of the daemon's socket, " + example)
	case !path.IsAbs(at.Socket):
		return wrong("socket: " + quoted(at.Socket) + ": must be an absolute path, " + example)
	case len(at.Socket) > maxSocket:
		return wrong("socket: " + quoted(at.Socket) + ": must have at most " + strconv.Itoa(maxSocket) + " bytes")
	case spool != "" && spool != at.Spool:
		return wrong("spool: " + quoted(spool) + ": must be " + quoted(at.Spool) + ", which lies beside the socket, or be left out")
	}
	return nil
}
