// Package cniproto is the protocol between the CNI plugin and the node daemon. Each
// connection over a unix socket carries one request and one answer.
//
// The request is a copy of the runtime's input, which the plugin does not interpret. It
// has the environment variables that CNI defines, each as "NAME=value" followed by a
// NUL, then one more NUL, then the network configuration byte for byte. The plugin sends
// it as POST /v1/cni over HTTP/1.1. If the request was served, the answer has status 200
// and the bytes that the plugin prints. Otherwise it has a status of 400 or above and a
// CNI error object. Status 421 (RFC 9110 section 15.5.20) means that the daemon is
// stopping; the plugin then sends an ADD or DEL again, to the next daemon. If the plugin's
// end of the connection closes, because the runtime killed the plugin, the daemon cancels
// the request.
//
// If no daemon answers a DEL, the plugin writes it to a spool. The daemon reads the spool
// when it is back.
//
// A runtime starts the plugin at least twice in the life of a pod and waits for it. The
// plugin links this package, so the package avoids the parts of the standard library that
// make a start slow: net, net/http, fmt, reflect and encoding/json. The daemon's side is
// package server, which decodes and checks the requests.
package cniproto

import "time"

// Version is the release, set by the linker. The plugin sends it to the daemon as its
// user agent.
var Version = "unreleased"

// RunDir is the directory that contains every spool. Its content does not survive a
// reboot. Only tests change it.
var RunDir = "/run"

// DefaultSocket returns the path of the daemon's socket that applies if the configuration
// of a DEL, or the ipam section of another plugin's configuration, names none.
func DefaultSocket() string { return RunDir + "/fairlead/cni.sock" }

const (
	// SpoolDir is the name of the directory beside the socket that holds the DELs which
	// no daemon answered. The daemon creates it; the plugin creates no directory.
	SpoolDir = "del"
	// HeartbeatFile is the name of the file beside the socket that the daemon writes
	// periodically while it can serve ADD. Its content is the kernel's boot ID.
	HeartbeatFile = "heartbeat"
	// HeartbeatGrace is the greatest age of the heartbeat with which a STATUS succeeds
	// that the daemon does not answer: an upgrade of the daemon must not make a node
	// unready.
	HeartbeatGrace = time.Minute

	// MaxRequest is the largest size of a request, in bytes. Its largest parts are the
	// pod's annotations, which Kubernetes limits to 256 KiB, and the result of the ADD.
	MaxRequest = 1_000_000
	// MaxAnswer is the largest size of the body of an answer, in bytes.
	MaxAnswer = 1 << 20

	// StatusAskNext is the HTTP status with which a stopping daemon answers. It has done
	// nothing for the request, or has undone it.
	StatusAskNext = 421

	// Path is the HTTP path to which requests are posted.
	Path = "/v1/cni"
	// StatusPath is the HTTP path whose GET has the outcome of a STATUS.
	StatusPath = "/v1/status"
)

// Timeout returns the time limit of a request of verb, from the plugin's first attempt to
// the end of the answer. It applies on both sides of the socket. Runtimes wait longer: up
// to 4 minutes for an ADD, 1 minute for a DEL, 30 seconds for a GC.
func Timeout(verb string) time.Duration {
	switch verb {
	case VerbAdd:
		return 210 * time.Second
	case VerbDel:
		return 20 * time.Second
	case VerbGC:
		return 25 * time.Second
	case VerbStatus:
		return time.Second
	default:
		return 5 * time.Second
	}
}
