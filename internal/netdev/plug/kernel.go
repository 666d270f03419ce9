// Package plug makes, inspects and removes the interfaces of sandboxes.
//
// Whatever it puts on a host can be told from what others put there: routes carry
// link.RouteProtocol, links an alias that begins with link.AliasPrefix. It keeps no state
// of its own beyond open sockets; the kernel is asked each time.
package plug

import (
	"golang.org/x/sync/singleflight"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// maxPlugging is how many interfaces are plugged at once. The kernel changes one
// link after the other (rtnl_mutex), so with one at work and one ready more are not
// faster: each that waits in the kernel keeps a thread and, for a while, a processor
// busy, and here only a goroutine.
const maxPlugging = 2

// Kernel plugs the interfaces of sandboxes. Its methods may be called from many
// goroutines at once.
type Kernel struct {
	*link.Sockets
	// plugging has an entry for each interface that is being plugged.
	plugging chan struct{}
	removals singleflight.Group // by name of the host end
}

// New returns what plugs, over sockets on the host.
func New(s *link.Sockets) *Kernel {
	return &Kernel{Sockets: s, plugging: make(chan struct{}, maxPlugging)}
}
