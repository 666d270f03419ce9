// Package cniproto is what the CNI plugin and the node daemon say to each other
// over a unix socket: one request, one answer.
//
// The request is what the runtime gave the plugin, unread: the variables of the
// environment that CNI knows, each as "NAME=value" with a NUL behind it, one more
// NUL, and the network configuration byte for byte. It is sent as POST /v1/cni over
// HTTP/1.1 on a connection of its own. The answer to a request that was served has
// status 200 and the bytes that the plugin prints; any other has a status of 400 or
// above and a CNI error object, 421 (RFC 9110 section 15.5.20) that of a daemon
// which ends: the next one is to be asked. The connection is part of the protocol: when
// the plugin's side closes, because the runtime killed it, the daemon stops
// what it was doing for it.
//
// A DEL for which no daemon answers is written to a spool, which the daemon
// reads when it is back.
//
// The package is linked into the plugin, whose start a runtime waits for at
// least twice in the life of a pod. It uses the standard library without what takes
// time at the start: net and net/http, fmt, reflect and encoding/json. The daemon's
// side is the package server, which reads what the plugin only copies.
package cniproto

import "time"

// Version is set by the linker to the release that was built. The plugin tells
// it to the daemon as its user agent.
var Version = "unreleased"

// RunDir is below which a spool may be: what is there does not outlive a boot. Only
// tests have another.
var RunDir = "/run"

// DefaultSocket is where the daemon is when a DEL brings no configuration that says
// so.
func DefaultSocket() string { return RunDir + "/fairlead/cni.sock" }

const (
	// SpoolDir is the directory beside the socket that holds the DELs for which
	// no daemon answered. The daemon makes it, and the plugin no directory at all.
	SpoolDir = "del"
	// HeartbeatFile is the file beside the socket that the daemon writes while
	// it can serve ADD. Its content is the kernel's boot ID.
	HeartbeatFile = "heartbeat"
	// HeartbeatGrace is how old the heartbeat may be for a STATUS that the daemon does
	// not answer to succeed: an upgrade of the daemon must not make a node unready.
	HeartbeatGrace = time.Minute

	// MaxRequest bounds a request, in bytes. Its largest parts are the pod's
	// annotations, which Kubernetes bounds to 256 KiB, and the result of the ADD.
	MaxRequest = 1_000_000
	// MaxAnswer bounds the body of an answer, in bytes.
	MaxAnswer = 1 << 20

	// StatusAskNext is the status of an answer by a daemon that ends. Nothing was
	// done for the request, or is undone.
	StatusAskNext = 421

	// Path is where requests are posted.
	Path = "/v1/cni"
	// StatusPath answers a GET with what a STATUS would be answered.
	StatusPath = "/v1/status"
)

// Timeout is how long a request of that verb may take, from the plugin's first
// attempt to the end of the answer, on both sides of the socket. Runtimes wait
// longer: up to 4 minutes for an ADD, 1 for a DEL, 30 seconds for a GC.
func Timeout(verb string) time.Duration {
	switch verb {
	case VerbAdd:
		return 90 * time.Second
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
