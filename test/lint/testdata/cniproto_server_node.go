// at: internal/node/server/example.go

// Package server is where the socket is served.
package server

import (
	_ "net/http"

	_ "fairlead.dev/fairlead/internal/cniproto/server"
)
