// Package ovsdb reads and changes the database of Open vSwitch over the unix socket of
// ovsdb-server (RFC 7047). It has only what plugging a port needs: transactions, without
// monitors, locks or schemas.
package ovsdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

var (
	// ErrUnavailable means that ovsdb-server does not answer.
	ErrUnavailable = errors.New("ovsdb-server does not answer")
	// ErrRefused means that ovsdb-server did not execute the transaction.
	ErrRefused = errors.New("ovsdb-server refused the transaction")
)

const (
	database = "Open_vSwitch"
	// answerTimeout bounds a transaction. ovsdb-server needs about a millisecond.
	answerTimeout = 5 * time.Second
	// awaitTimeout bounds an Await.
	awaitTimeout = answerTimeout - time.Second
	// maxAnswer bounds the bytes of an answer.
	maxAnswer = 64 << 20
	// requestID is the ID of the only request of a connection.
	requestID = "1"
)

// Client executes transactions at the ovsdb-server of a socket. Each transaction has a
// connection of its own: none is left over from before a restart of ovsdb-server.
type Client struct {
	socket  string
	timeout time.Duration // answerTimeout, shorter in tests
}

// New returns a client of the socket at a path. With an empty path each transaction fails
// with ErrUnavailable.
func New(socket string) *Client { return &Client{socket: socket, timeout: answerTimeout} }

// Transact executes operations, all or none, and returns the result of each. Errors:
// ErrUnavailable, after which the operations may have been executed; ErrRefused; the cause
// of ctx.
func (c *Client) Transact(ctx context.Context, ops ...Operation) ([]Result, error) {
	limited, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	answer, err := c.exchange(limited, ops)
	switch {
	case err == nil:
		return results(answer, ops)
	case ctx.Err() != nil:
		return nil, fmt.Errorf("asking ovsdb-server at %q: %w", c.socket, context.Cause(ctx))
	}
	return nil, fmt.Errorf("%w at %q: %s", ErrUnavailable, c.socket, c.reason(limited, err))
}

// exchange sends the request, and returns the result of the answer.
func (c *Client) exchange(ctx context.Context, ops []Operation) (json.RawMessage, error) {
	if c.socket == "" {
		return nil, errors.New("no socket is configured")
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", c.socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // the answer is complete, or another error is returned
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()

	params := []any{database}
	for _, op := range ops {
		params = append(params, op)
	}
	err = json.NewEncoder(conn).Encode(map[string]any{"method": "transact", "params": params, "id": json.RawMessage(requestID)})
	if err != nil {
		return nil, err
	}
	return await(conn)
}

// message is a request, a notification or an answer (RFC 7047, section 4).
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  json.RawMessage `json:"error"`
}

// await returns the result of the answer to the request. Until then it answers each echo,
// by which ovsdb-server finds out whether this side is alive.
func await(conn io.ReadWriter) (json.RawMessage, error) {
	in, out := json.NewDecoder(io.LimitReader(conn, maxAnswer)), json.NewEncoder(conn)
	for {
		var m message
		if err := in.Decode(&m); err != nil {
			return nil, err
		}
		switch {
		case m.Method == "echo":
			if err := out.Encode(message{ID: m.ID, Result: m.Params, Error: json.RawMessage("null")}); err != nil {
				return nil, err
			}
		case m.Method != "" || string(m.ID) != requestID:
		case len(m.Error) > 0 && string(m.Error) != "null":
			return nil, fmt.Errorf("it answers with the error %s", m.Error)
		default:
			return m.Result, nil
		}
	}
}

// reason describes why there is no answer. It avoids the kernel's words for a missing file,
// which runtimes take for success.
func (c *Client) reason(ctx context.Context, err error) string {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return "no socket is there; Open vSwitch must run on this node, and ovsdbSocket of fairlead-node must be its socket"
	case errors.Is(err, unix.ECONNREFUSED):
		return "no process listens; Open vSwitch must run on this node"
	case ctx.Err() != nil:
		return fmt.Sprintf("no answer within %s", c.timeout)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the connection was closed before the answer"
	}
	return err.Error()
}
