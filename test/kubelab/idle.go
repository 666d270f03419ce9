package main

import (
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// idleSocket is the socket in the data directory of a kubelab with --idle.
const idleSocket = "idle.sock"

// idleRoom is how many bytes may be allocated after makeIdle until garbage is
// collected: enough to create 1,000 objects and serve watches of them, and as much again.
const idleRoom = 1 << 30

// serveIdle calls makeIdle for each connection, and closes the connection when
// that is done.
func serveIdle(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return // closed with the process
		}
		makeIdle(idleRoom)
		_ = conn.Close()
	}
}

// makeIdle brings the process into the state of a control plane that has run for long: its
// heap has room, of memory that was in use before. Garbage is collected now, and not in
// the next measurement. Otherwise one of two measurements would by chance pay for that,
// or for memory that the system has to provide first.
func makeIdle(room uint64) {
	runtime.GC()
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	debug.SetGCPercent(int(max(heapGrowth, room*100/max(live[0].Value.Uint64(), 1))))
	const piece = 1 << 20
	used := make([][]byte, room/piece)
	for i := range used {
		used[i] = make([]byte, piece)
		for at := 0; at < piece; at += os.Getpagesize() {
			used[i][at] = 1
		}
	}
	runtime.KeepAlive(used)
	used = nil
	runtime.GC()
}
