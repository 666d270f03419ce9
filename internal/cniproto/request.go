package cniproto

import (
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

// since is the version of CNI that a verb came with, empty if all Versions have it.
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

// maxContainerID bounds the container ID, which is part of file names; idRule says so.
// Runtimes use 64 bytes.
const maxContainerID = 200

// idRule is what validContainerID demands.
const idRule = "must start with a letter or a digit, go on with those and the characters _ . - and have at most 200"

// Request is one call of the plugin. DecodeRequest and Encode know its fields by
// the names in fields.
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
	// leaves it to TimeoutMS.
	DeadlineMS int64
	// Config is the network configuration that the runtime gave on standard
	// input, unchanged. A DEL may have none.
	Config []byte
}

// requestFields are the fields of a Request: an array, for the stack of whoever asks.
type requestFields [13]field

// fields lists the names of a request's fields in its JSON.
func (r *Request) fields(list *requestFields) {
	*list = requestFields{
		{"requestID", &r.RequestID},
		{"verb", &r.Verb},
		{"ipam", &r.IPAM},
		{"containerID", &r.ContainerID},
		{"netns", &r.Netns},
		{"ifname", &r.IfName},
		{"args", &r.Args},
		{"path", &r.Path},
		{"traceparent", &r.Traceparent},
		{"tracestate", &r.Tracestate},
		{"baggage", &r.Baggage},
		{"deadlineMS", &r.DeadlineMS},
		{"config", &r.Config},
	}
}

// Encode returns the JSON of a request, without what is empty. The configuration must
// be JSON, which Parse and DecodeRequest see to.
func (r Request) Encode() []byte {
	return r.append(make([]byte, 0, len(r.Config)+usualRest))
}

// usualRest is more than a request has beside its configuration as a rule, in bytes.
const usualRest = 2 << 10

// append is Encode to the end of out.
func (r *Request) append(out []byte) []byte {
	start := len(out)
	var fields requestFields
	r.fields(&fields)
	for i := range fields {
		f := &fields[i]
		key := `,"` + f.key + `":`
		switch value := f.into.(type) {
		case *string:
			if *value != "" {
				out = appendQuoted(append(out, key...), *value)
			}
		case *int64:
			if *value != 0 {
				out = strconv.AppendInt(append(out, key...), *value, 10)
			}
		case *[]byte:
			if len(*value) != 0 {
				out = append(append(out, key...), *value...)
			}
		}
	}
	if len(out) == start {
		return append(out, "{}"...)
	}
	out[start] = '{' // was the first comma
	return append(out, '}')
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
// Errors are *Error and name what is missing or wrong; r is then what was read until
// there. A DEL is taken with any configuration or none, as long as the container ID is
// right: what cannot be read of it is left out, and the daemon is where it is by
// default.
func (r *Request) Parse(c Call) (at Endpoint, err error) {
	r.RequestID = strconv.FormatUint(rand.Uint64(), 16)
	r.Verb = c.Getenv("CNI_COMMAND")
	r.ContainerID = c.Getenv("CNI_CONTAINERID")
	r.Netns = c.Getenv("CNI_NETNS")
	r.IfName = c.Getenv("CNI_IFNAME")
	r.Args = c.Getenv("CNI_ARGS")
	r.Path = c.Getenv("CNI_PATH")
	r.Traceparent = c.Getenv("TRACEPARENT")
	r.Tracestate = c.Getenv("TRACESTATE")
	r.Baggage = c.Getenv("BAGGAGE")
	if slices.Contains(IPAMPrograms, c.Program) {
		r.IPAM = c.Program
	}
	if err := r.checkEnvironment(); err != nil {
		return at, err
	}
	r.Config, err = readConfig(c.Stdin)
	if err == nil {
		at, err = r.daemon()
	}
	if err != nil && r.Verb == VerbDel {
		if !isObject(r.Config) {
			r.Config = nil
		}
		return DefaultEndpoint(), nil
	}
	return at, err
}

// daemon says where the daemon is, by a configuration with which it can serve the
// request. Errors are *Error.
func (r *Request) daemon() (Endpoint, error) {
	n, err := r.network()
	if err == nil && r.Verb != VerbDel {
		err = r.checkNetwork(&n)
	}
	if err == nil && r.IPAM != "" {
		n, err = r.ipamNetwork()
	}
	if r.Verb == VerbDel {
		n.Spool = "" // there is one, whatever a DEL says
	}
	if err == nil {
		err = n.check()
	}
	if err != nil {
		return Endpoint{}, err
	}
	return n.endpoint(), nil
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
	version := ""
	if !blank(string(config)) {
		n, err := (&Request{Config: config}).network()
		if err != nil {
			return nil, err
		}
		version = n.CNIVersion
	}
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

// DecodeRequest reads a request as it is sent over the socket. Errors are
// *Error of CodeDecode. Fields that it does not know are those of a newer
// plugin and left out. What it returns is not validated.
func DecodeRequest(body []byte) (Request, error) {
	if len(body) > MaxRequest {
		return Request{}, TooLarge("request")
	}
	var r Request
	var fields requestFields
	r.fields(&fields)
	if err := decode(string(body), fields[:]); err != nil {
		return Request{}, &Error{Code: CodeDecode, Msg: "request: " + err.Error()}
	}
	return r, nil
}

// Validate says what is missing or wrong in a request, as an *Error. It is what
// both sides of the socket demand.
func (r *Request) Validate() error {
	if err := r.checkEnvironment(); err != nil {
		return err
	}
	if r.Verb == VerbDel {
		return nil
	}
	n, err := r.network()
	if err != nil {
		return err
	}
	return r.checkNetwork(&n)
}

// checkEnvironment follows the CNI specification 1.1.0, section 2, and for DEL
// demands nothing but the container ID.
func (r *Request) checkEnvironment() error {
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

// blank reports whether nothing but white space is there.
func blank(config string) bool { return strings.TrimSpace(config) == "" }

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
type network struct{ CNIVersion, Name, Socket, Spool string }

// network reads the configuration; errors are *Error of CodeDecode.
func (r *Request) network() (n network, err error) {
	err = r.configFields([]field{{"cniVersion", &n.CNIVersion}, {"name", &n.Name}, {"socket", &n.Socket}, {"spool", &n.Spool}})
	return n, err
}

// configFields reads fields of the configuration; errors are *Error of CodeDecode.
func (r *Request) configFields(fields []field) error {
	const what = "network configuration: "
	text := string(r.Config)
	if blank(text) {
		return &Error{Code: CodeDecode, Msg: what + "empty: must be a JSON object"}
	}
	err := decode(text, fields)
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[notObject](err); ok {
		return &Error{Code: CodeDecode, Msg: what + quoted(text) + ": must be a JSON object"}
	}
	return &Error{Code: CodeDecode, Msg: what + err.Error()}
}

// checkNetwork says what of the configuration the verb cannot be served with.
func (r *Request) checkNetwork(n *network) error {
	if !slices.Contains(Versions, n.CNIVersion) {
		return &Error{
			Code: CodeIncompatibleVersion,
			Msg:  "cniVersion: " + quoted(n.CNIVersion) + ": must be one of " + strings.Join(Versions, ", "),
		}
	}
	// The versions are of one form, so their order is that of their text.
	if first := since(r.Verb); n.CNIVersion < first {
		return &Error{
			Code: CodeIncompatibleVersion,
			Msg:  "cniVersion: " + quoted(n.CNIVersion) + ": does not have " + r.Verb + ", which came with " + first,
		}
	}
	if n.Name == "" || !validContainerID(n.Name) {
		return &Error{Code: CodeInvalidConfig, Msg: "name: " + quoted(n.Name) + ": the network's name is required, " + idRule}
	}
	return nil
}

// CNIVersion returns the version of the configuration if it is one of Versions,
// else an empty string.
func (r *Request) CNIVersion() string {
	if n, err := r.network(); err == nil && slices.Contains(Versions, n.CNIVersion) {
		return n.CNIVersion
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
func DefaultEndpoint() Endpoint { return (&network{Socket: DefaultSocket()}).endpoint() }

// maxSocket is what fits into a sockaddr_un.
const maxSocket = 107

func (n *network) endpoint() Endpoint {
	dir := path.Dir(n.Socket)
	return Endpoint{Socket: n.Socket, Spool: path.Join(dir, SpoolDir), Heartbeat: path.Join(dir, HeartbeatFile)}
}

// ipamNetwork reads where the daemon is from the ipam section, the only part of
// another plugin's configuration that is ours: ipam.socket, else the default.
func (r *Request) ipamNetwork() (network, error) {
	n := network{Socket: DefaultSocket()}
	var socket string
	if err := r.configFields([]field{{"ipam", []field{{"socket", &socket}}}}); err != nil {
		return network{}, err
	}
	if socket != "" {
		n.Socket = socket
	}
	return n, nil
}

func (n *network) check() error {
	example := `for example "socket": "` + DefaultSocket() + `"`
	switch {
	case n.Socket == "":
		return &Error{Code: CodeInvalidConfig, Msg: "socket: missing: must be the path of the daemon's socket, " + example}
	case !path.IsAbs(n.Socket):
		return &Error{Code: CodeInvalidConfig, Msg: "socket: " + quoted(n.Socket) + ": must be an absolute path, " + example}
	case len(n.Socket) > maxSocket:
		return &Error{Code: CodeInvalidConfig, Msg: "socket: " + quoted(n.Socket) + ": must have at most " + strconv.Itoa(maxSocket) + " bytes"}
	}
	if right := n.endpoint().Spool; n.Spool != "" && n.Spool != right {
		return &Error{Code: CodeInvalidConfig, Msg: "spool: " + quoted(n.Spool) + ": must be " + quoted(right) + ", which lies beside the socket, or be left out"}
	}
	return nil
}

func isObject(config []byte) bool {
	_, kind, err := scan(string(config))
	return err == nil && kind == "object"
}
