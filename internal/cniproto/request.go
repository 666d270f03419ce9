package cniproto

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
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

// Request is one call of the plugin. Its fields except Config are the header of a frame.
type Request struct {
	// RequestID identifies the call. It stays the same if the request is sent again.
	RequestID string `json:"requestID,omitempty"`
	// Release is the release of the plugin.
	Release string `json:"release,omitempty"`
	// Verb is CNI_COMMAND, one of Verbs.
	Verb string `json:"verb,omitempty"`
	// IPAM is the program name, one of IPAMPrograms, if the plugin acts as an IPAM
	// plugin; otherwise it is empty.
	IPAM string `json:"ipam,omitempty"`
	// ContainerID, Netns, IfName, Args and Path are the variables CNI_CONTAINERID,
	// CNI_NETNS, CNI_IFNAME, CNI_ARGS and CNI_PATH.
	ContainerID string `json:"containerID,omitempty"`
	Netns       string `json:"netns,omitempty"`
	IfName      string `json:"ifName,omitempty"`
	Args        string `json:"args,omitempty"`
	Path        string `json:"path,omitempty"`
	// Traceparent, Tracestate and Baggage are the variables of W3C Trace Context
	// that libcni sets from version 1.3.1.
	Traceparent string `json:"traceparent,omitempty"`
	Tracestate  string `json:"tracestate,omitempty"`
	Baggage     string `json:"baggage,omitempty"`
	// DeadlineMS is the time after which the plugin gives up, in milliseconds. If it is
	// zero or less, or larger than Timeout of the verb, Timeout applies.
	DeadlineMS int64 `json:"deadlineMS,omitempty"`
	// Config is the network configuration from standard input, unchanged. A DEL may
	// have none.
	Config []byte `json:"-"`
}

// Encode returns the frame of a request, which is sent and spooled. U+FFFD replaces each
// byte of a variable that is not UTF-8. A DEL that is larger than MaxRequest has no
// configuration in it, because a DEL needs none. Errors are *Error with CodeDecode if the
// request is larger nevertheless.
func (r Request) Encode() ([]byte, error) {
	out, err := encodeFrame("request", r, r.Config, MaxRequest)
	if err != nil && r.Verb == VerbDel {
		return encodeFrame("request", r, nil, MaxRequest)
	}
	return out, err
}

// DecodeRequest reads a request. It does not validate it. Errors: io.EOF if there is no
// byte; otherwise *Error, with CodeTryAgainLater if the peer speaks another version of the
// protocol.
func DecodeRequest(in io.Reader) (r Request, err error) {
	r.Config, err = decodeFrame("request", in, &r, MaxRequest)
	_, isOwn := errors.AsType[*Error](err)
	switch {
	case err == nil:
		return r, nil
	case errors.Is(err, ErrVersion):
		err = &Error{Code: CodeTryAgainLater, Msg: err.Error()}
	case !isOwn && !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrDeadlineExceeded):
		err = &Error{Code: CodeDecode, Msg: err.Error()}
	}
	return Request{}, err
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
	*r = Request{
		RequestID: strconv.FormatUint(rand.Uint64(), 16), Release: Version, Verb: c.Getenv("CNI_COMMAND"),
		ContainerID: c.Getenv("CNI_CONTAINERID"), Netns: c.Getenv("CNI_NETNS"), IfName: c.Getenv("CNI_IFNAME"),
		Args: c.Getenv("CNI_ARGS"), Path: c.Getenv("CNI_PATH"),
		Traceparent: c.Getenv("TRACEPARENT"), Tracestate: c.Getenv("TRACESTATE"), Baggage: c.Getenv("BAGGAGE"),
	}
	if slices.Contains(IPAMPrograms, c.Program) {
		r.IPAM = c.Program
	}
	if err := r.checkEnvironment(); err != nil {
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

const configuration = "network configuration"

// readConfig reads the network configuration. It returns nil with an error.
func readConfig(stdin io.Reader) ([]byte, error) {
	config, err := io.ReadAll(io.LimitReader(stdin, MaxRequest+1))
	if err != nil {
		return nil, &Error{Code: CodeIO, Msg: configuration + ": standard input cannot be read: " + err.Error()}
	}
	if len(config) > MaxRequest {
		return nil, tooLarge(configuration, MaxRequest)
	}
	return config, nil
}

// AnswerVersion returns the result of a VERSION. It repeats the cniVersion of the
// configuration on standard input. If there is no cniVersion or no configuration, it
// returns the newest version instead. Errors are *Error.
func AnswerVersion(stdin io.Reader) ([]byte, error) {
	config, err := readConfig(stdin)
	if err != nil {
		return nil, err
	}
	var out struct {
		CNIVersion        string   `json:"cniVersion"`
		SupportedVersions []string `json:"supportedVersions"`
	}
	if len(bytes.TrimSpace(config)) > 0 {
		if err := decodeObject(configuration, config, &out); err != nil {
			return nil, err
		}
	}
	out.CNIVersion, out.SupportedVersions = cmp.Or(out.CNIVersion, Versions[len(Versions)-1]), Versions
	return json.Marshal(out)
}

// Validate returns an *Error if a field of the request is missing or wrong. A DEL is valid
// with any configuration; Validate drops its configuration if it is not a JSON object.
func (r *Request) Validate() error {
	if err := r.checkEnvironment(); err != nil {
		return err
	}
	var n struct {
		CNIVersion string `json:"cniVersion"`
		Name       string `json:"name"`
	}
	if r.Verb == VerbDel {
		if decodeObject(configuration, r.Config, new(struct{})) != nil {
			r.Config = nil
		}
		return nil
	}
	if err := decodeObject(configuration, r.Config, &n); err != nil {
		return err
	}
	incompatible := func(format string, a ...any) error {
		return &Error{Code: CodeIncompatibleVersion, Msg: fmt.Sprintf("cniVersion: %.256q: "+format, append([]any{n.CNIVersion}, a...)...)}
	}
	if !slices.Contains(Versions, n.CNIVersion) {
		return incompatible("must be one of %s", strings.Join(Versions, ", "))
	}
	// All versions have the same form, so that their texts sort like the versions.
	if first := since(r.Verb); n.CNIVersion < first {
		return incompatible("has no %s, which needs at least %s", r.Verb, first)
	}
	return CheckNetworkName(n.Name)
}

// since returns the first version of CNI that has the verb, empty if all Versions have it.
func since(verb string) string {
	switch verb {
	case VerbCheck:
		return "0.4.0"
	case VerbStatus, VerbGC:
		return "1.1.0"
	default:
		return ""
	}
}

// checkEnvironment returns an *Error if a variable of the request is missing or wrong. It
// follows the CNI specification 1.1.0, section 2. For DEL it requires only the container
// ID. Both sides of the socket call it; the plugin does because it names spool files after
// the variables.
func (r *Request) checkEnvironment() error {
	wrong := func(format string, a ...any) error {
		return &Error{Code: CodeInvalidEnvironment, Msg: fmt.Sprintf(format, a...)}
	}
	verbs := "must be one of " + strings.Join(Verbs, ", ") + " or " + VerbVersion
	var missing []string
	for _, v := range []struct {
		name, value string
		verbs       []string
	}{
		{"CNI_CONTAINERID", r.ContainerID, []string{VerbAdd, VerbCheck, VerbDel}},
		{"CNI_NETNS", r.Netns, []string{VerbAdd, VerbCheck}},
		{"CNI_IFNAME", r.IfName, []string{VerbAdd, VerbCheck}},
	} {
		if v.value == "" && slices.Contains(v.verbs, r.Verb) {
			missing = append(missing, v.name)
		}
	}
	switch {
	case r.Verb == "":
		return wrong("CNI_COMMAND: missing: %s", verbs)
	case !slices.Contains(Verbs, r.Verb):
		return wrong("CNI_COMMAND: %.256q: %s", r.Verb, verbs)
	case len(missing) > 0:
		return wrong("%s: missing: %s needs it", strings.Join(missing, ", "), r.Verb)
	case !validContainerID(r.ContainerID):
		return wrong("CNI_CONTAINERID: %.256q: %s", r.ContainerID, idRule)
	case !validIfName(r.IfName):
		return wrong("CNI_IFNAME: %.256q: must have 1 to 15 characters, not be . or .. and contain neither / nor : nor white space", r.IfName)
	}
	return nil
}

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
		return &Error{Code: CodeInvalidConfig, Msg: fmt.Sprintf("name: %.256q: the network's name is required, %s", name, idRule)}
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
	var n struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal(r.Config, &n); err != nil || !slices.Contains(Versions, n.CNIVersion) {
		return ""
	}
	return n.CNIVersion
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
// A field of another type counts as missing here; the daemon reports it. Errors are *Error.
func (r *Request) endpoint() (Endpoint, error) {
	var config any
	if err := decodeObject(configuration, r.Config, &config); err != nil {
		return Endpoint{}, err
	}
	section, _ := config.(map[string]any)
	if r.IPAM != "" {
		section, _ = section["ipam"].(map[string]any)
		socket, _ := section["socket"].(string)
		at := endpointAt(cmp.Or(socket, DefaultSocket()))
		return at, at.check("")
	}
	socket, _ := section["socket"].(string)
	spool, _ := section["spool"].(string)
	if r.Verb == VerbDel {
		spool = "" // a wrong spool in the configuration must not fail a DEL
	}
	at := endpointAt(socket)
	return at, at.check(spool)
}

// maxSocket is the longest path that fits into a sockaddr_un, in bytes.
const maxSocket = 107

// check returns an *Error if the socket of the endpoint, or the configured spool, is wrong.
func (at Endpoint) check(spool string) error {
	wrong := func(format string, a ...any) error {
		return &Error{Code: CodeInvalidConfig, Msg: fmt.Sprintf(format, a...)}
	}
	const example = `for example "socket": %q`
	switch {
	case at.Socket == "":
		return wrong("socket: missing: must be the path of the daemon's socket, "+example, DefaultSocket())
	case !path.IsAbs(at.Socket):
		return wrong("socket: %.256q: must be an absolute path, "+example, at.Socket, DefaultSocket())
	case len(at.Socket) > maxSocket:
		return wrong("socket: %.256q: must have at most %d bytes", at.Socket, maxSocket)
	case spool != "" && spool != at.Spool:
		return wrong("spool: %.256q: must be %q, which lies beside the socket, or be left out", spool, at.Spool)
	}
	return nil
}
