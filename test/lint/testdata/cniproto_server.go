// at: internal/controller/server/example.go

// Package server breaks the rule cniproto-server.
package server

import (
	_ "fairlead.dev/fairlead/internal/cniproto/server" // want: depguard:cniproto-server depguard:stages-controller
)
