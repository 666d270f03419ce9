package cloudtest

import (
	"net/http"
	"time"
)

// Fault is a failure of one request. The zero value is none.
type Fault struct {
	// Delay passes before the request is done.
	Delay time.Duration
	// Status is answered, with Body, and nothing is done.
	Status int
	Body   string
	// RetryAfter is the header of that answer.
	RetryAfter string
	// LoseRequest ends the connection, and nothing is done.
	LoseRequest bool
	// LoseReply does the request and ends the connection without an answer.
	LoseReply bool
}

// Inject has a function choose the fault of each request by its method and path, as
// "/ports/{id}/tags" and "/auth/tokens". Nil ends all faults. It must not call the Server.
func (s *Server) Inject(f func(method, path string) Fault) { s.locked(func() { s.fault = f }) }

// before reports whether the request is to be done.
func (f Fault) before(w http.ResponseWriter, r *http.Request) bool {
	if f.Delay > 0 {
		timer := time.NewTimer(f.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
			return false
		}
	}
	if f.LoseRequest {
		panic(http.ErrAbortHandler) // ends the connection
	}
	if f.Status == 0 {
		return true
	}
	if f.RetryAfter != "" {
		w.Header().Set("Retry-After", f.RetryAfter)
	}
	if len(f.Body) > 0 && f.Body[0] == '{' {
		w.Header().Set("Content-Type", "application/json")
	} else {
		w.Header().Set("Content-Type", "text/html")
	}
	w.WriteHeader(f.Status)
	_, _ = w.Write([]byte(f.Body)) // a client that left has no answer
	return false
}

func (f Fault) after() {
	if f.LoseReply {
		panic(http.ErrAbortHandler) // ends the connection
	}
}
