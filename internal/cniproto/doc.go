// Package cniproto is the protocol between the CNI plugin and the node daemon. Each
// connection over a unix socket carries one request and one answer, which are frames.
//
// A request has the environment variables that CNI defines, and the network configuration
// byte for byte. Of the configuration the plugin interprets only where the daemon is. An
// answer has the bytes that the plugin prints, or a CNI error. If the daemon is stopping, the
// answer has that instead; the plugin then sends an ADD or DEL again, to the next daemon. If the
// plugin's end of the connection closes, because the runtime killed the plugin, the daemon
// cancels the request.
//
// If no daemon answers a DEL, the plugin writes it to a spool. The daemon reads the spool
// when it is back.
//
// A runtime starts the plugin at least twice in the life of a pod and waits for it. The
// plugin links this package, so the package avoids net, which would make a start slow. The
// daemon's side is package server.
package cniproto

import "time"

// Version is the release, set by the linker. The plugin sends it to the daemon.
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
	// MaxAnswer is the largest size of an answer, in bytes.
	MaxAnswer = 1 << 20
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
