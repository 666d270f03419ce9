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

// maxContainerID bounds the container ID, which is part of file names; idRule says so.
// Runtimes use 64 bytes.
const maxContainerID = 200

// idRule is what validContainerID demands.
const idRule = "must start with a letter or a digit, go on with those and the characters _ . - and have at most 200"

// Request is one call of the plugin.
type Request struct {
	// RequestID is the same when a request is sent a second time.
	RequestID string
	// Verb is CNI_COMMAND, one of Verbs.
	Verb string
	// IPAM is the name under which the plugin was executed, one of
	// IPAMPrograms, when it is asked for addresses alone; else empty.
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
	// DeadlineMS is in how many milliseconds the plugin gives up. Zero or less
	// leaves it to Timeout.
	DeadlineMS int64
	// Config is the network configuration that the runtime gave on standard
	// input, unchanged. A DEL may have none.
	Config []byte
}

const (
	deadlineVariable = "FAIRLEAD_DEADLINE_MS"
	// ours is how the variables begin that the plugin adds to the runtime's.
	ours = "FAIRLEAD_"
)

// variable of the environment and its value in a request.
type variable struct {
	name  string
	value *string
}

// variables are all that a request has but its deadline and the configuration. Those
// that the plugin sets come first.
func (r *Request) variables() [11]variable {
	return [...]variable{
		{ours + "REQUEST_ID", &r.RequestID},
		{ours + "IPAM", &r.IPAM},
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

// Encode returns a request as it is sent and spooled, without variables that are empty.
// A NUL ends a variable, as in an environment.
func (r Request) Encode() []byte {
	return r.append(make([]byte, 0, len(r.Config)+usualRest))
}

// usualRest is more than a request has beside its configuration as a rule, in bytes.
const usualRest = 2 << 10

// append is Encode to the end of out.
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

// DecodeRequest is the inverse of Encode. Errors are *Error of CodeDecode. Variables
// that it does not know are those of a newer plugin and left out. What it returns is
// not validated.
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
			r.Config = bytes.Clone(after) // not a part of what came, which would be kept with it
			return r, nil
		}
		name, value, _ := strings.Cut(string(pair), "=")
		if !utf8.ValidString(value) {
			value = string([]rune(value)) // each byte that is not UTF-8 is U+FFFD
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

// Call is what a runtime hands a plugin.
type Call struct {
	// Program is the name under which the plugin was executed, without a directory.
	Program string
	// Getenv returns a variable of the environment, empty if there is none.
	Getenv func(name string) string
	// Stdin has the network configuration.
	Stdin io.Reader
}

// Parse makes r the request of a call, and says where the daemon is that serves it.
// Of the configuration it reads no more than that. Errors are *Error and name what is
// missing or wrong; r is then what was read until there. A DEL is taken with any
// configuration or none, as long as the container ID is right: the daemon is where it
// is by default when the configuration does not say.
func (r *Request) Parse(c Call) (at Endpoint, err error) {
	r.RequestID = strconv.FormatUint(rand.Uint64(), 16)
	for _, v := range r.variables() {
		if !strings.HasPrefix(v.name, ours) {
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

// readConfig reads the network configuration, nil after an error.
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

// readAll reads to the end, or one byte more than MaxRequest. What a new process
// touches of its memory it waits for, so the buffer does not grow as a rule.
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

// AnswerVersion makes the result of a VERSION of what a runtime gives it on standard
// input: a configuration with a cniVersion, which may be missing, as may everything.
// Errors are *Error.
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

// TooLarge is the error for something that is larger than MaxRequest.
func TooLarge(what string) *Error {
	return &Error{Code: CodeDecode, Msg: what + ": larger than the limit of " + strconv.Itoa(MaxRequest) + " bytes"}
}

// CheckEnvironment says what is missing or wrong in the variables of a request, as an
// *Error. It follows the CNI specification 1.1.0, section 2, and for DEL demands
// nothing but the container ID. Both sides of the socket do: the plugin names files.
func (r *Request) CheckEnvironment() error {
	switch {
	case r.Verb == "":
		return environment("CNI_COMMAND: missing: must be one of " + strings.Join(Verbs, ", ") + " or " + VerbVersion)
	case !slices.Contains(Verbs, r.Verb):
		return environment("CNI_COMMAND: " + quoted(r.Verb) + ": must be one of " + strings.Join(Verbs, ", ") + " or " + VerbVersion)
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
		return environment(strings.Join(missing, ", ") + ": missing: " + r.Verb + " needs it")
	}
	if !validContainerID(r.ContainerID) {
		return environment("CNI_CONTAINERID: " + quoted(r.ContainerID) + ": " + idRule)
	}
	if !validIfName(r.IfName) {
		return environment("CNI_IFNAME: " + quoted(r.IfName) + ": must have 1 to 15 characters, not be . or .. " +
			"and contain neither / nor : nor white space")
	}
	return nil
}

func environment(msg string) error { return &Error{Code: CodeInvalidEnvironment, Msg: msg} }

// clip keeps a wrong value from making a message of any length.
func clip(s string) string {
	const most = 256
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}

// quoted is a wrong value in a message.
func quoted(s string) string { return strconv.Quote(clip(s)) }

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

// CheckNetworkName says what is wrong with the name of a network, as an *Error.
func CheckNetworkName(name string) error {
	if name == "" || !validContainerID(name) {
		return &Error{Code: CodeInvalidConfig, Msg: "name: " + quoted(name) + ": the network's name is required, " + idRule}
	}
	return nil
}

// validIfName reports whether name is empty or one that Linux takes for an
// interface.
func validIfName(name string) bool {
	wrong := func(r rune) bool { return r == '/' || r == ':' || r == 0 || unicode.IsSpace(r) }
	return len(name) <= 15 && name != "." && name != ".." && utf8.ValidString(name) && !strings.ContainsFunc(name, wrong)
}

// CNIVersion returns the version of the configuration if it is one of Versions,
// else an empty string.
func (r *Request) CNIVersion() string {
	value, open := lookup(string(r.Config), "cniVersion")
	if version := unquote(value); open == 0 && slices.Contains(Versions, version) {
		return version
	}
	return ""
}

// Endpoint is where the daemon is, and what is used in its absence.
type Endpoint struct {
	// Socket of the daemon, and beside it Spool (a directory) and Heartbeat (a file),
	// are absolute paths.
	Socket, Spool, Heartbeat string
}

// DefaultEndpoint is where the daemon is unless a configuration says otherwise.
func DefaultEndpoint() Endpoint { return endpointAt(DefaultSocket()) }

func endpointAt(socket string) Endpoint {
	dir := path.Dir(socket)
	return Endpoint{Socket: socket, Spool: path.Join(dir, SpoolDir), Heartbeat: path.Join(dir, HeartbeatFile)}
}

// endpoint reads from the configuration where the daemon is. Of another plugin's only
// the ipam section is ours, which need not say it. Errors are *Error.
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
		spool = "" // there is one, whatever a DEL says
	}
	return at, at.check(spool)
}

// checkObject says what is wrong with a configuration of which nothing can be looked up,
// as an *Error.
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

// maxSocket is what fits into a sockaddr_un.
const maxSocket = 107

// check says what is wrong with the paths of a configuration, as an *Error.
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
