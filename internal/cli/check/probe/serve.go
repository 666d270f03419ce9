package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"
)

const (
	// writeTimeout bounds one answer.
	writeTimeout = 5 * time.Second
	// maxDatagram is the largest datagram of IP.
	maxDatagram = 1 << 16
	// maxName bounds the name of a server, so that its answer is no larger than a question.
	maxName = 128
	// maxRecords bounds the memory for datagrams with forged sources. A check needs a few.
	maxRecords = 4096
)

// server answers at a port by TCP and UDP with its name and the address of the asker.
type server struct {
	name   string
	stream net.Listener
	packet net.PacketConn
}

// listen opens a port of all addresses of a host; host is empty for all.
func listen(ctx context.Context, host string, port uint16, name string) (*server, error) {
	if len(name) > maxName {
		return nil, fmt.Errorf("name %q: must have at most %d characters", name, maxName)
	}
	at := net.JoinHostPort(host, strconv.Itoa(int(port)))
	var config net.ListenConfig
	stream, err := config.Listen(ctx, "tcp", at)
	if err != nil {
		return nil, err
	}
	packet, err := config.ListenPacket(ctx, "udp", stream.Addr().String())
	if err != nil {
		return nil, errors.Join(err, stream.Close())
	}
	return &server{name, stream, packet}, nil
}

// serve answers until ctx ends; then it returns nil.
func (s *server) serve(ctx context.Context) error {
	stop := context.AfterFunc(ctx, s.close)
	defer stop()
	var (
		all  sync.WaitGroup
		errs [2]error
	)
	all.Go(func() { errs[0] = s.serveStream(); s.close() })
	all.Go(func() { errs[1] = s.servePacket(); s.close() })
	all.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return errors.Join(errs[:]...)
}

func (s *server) close() {
	_ = s.stream.Close() // a second Close fails
	_ = s.packet.Close()
}

// serveStream answers each connection at once, and reads nothing of it.
func (s *server) serveStream() error {
	for {
		conn, err := s.stream.Accept()
		if err != nil {
			return err
		}
		go func() {
			_ = conn.SetDeadline(time.Now().Add(writeTimeout))   // it fails only after a Close
			_, _ = conn.Write(s.answer(conn.RemoteAddr()).raw()) // the asker sees it
			_ = conn.Close()
		}()
	}
}

func (s *server) servePacket() error {
	buffer, forged := make([]byte, maxDatagram), records{}
	for {
		n, from, err := s.packet.ReadFrom(buffer)
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		// Any other error is of one packet, as an ICMP message about an answer.
		if err != nil || n < smallest || !bytes.HasPrefix(buffer[:n], []byte(question)) {
			continue
		}
		a := s.answer(from)
		mark, token := buffer[len(question)], string(buffer[len(question)+1:][:tokenSize])
		switch mark {
		case markForged:
			forged.add(token, a.Source)
			continue
		case markOwn:
			a.Forged, a.Full = forged[token], len(forged) == maxRecords
		}
		_, _ = s.packet.WriteTo(a.raw(), from) // the asker asks again
	}
}

// records has the sources of datagrams with forged ones, by their tokens.
type records map[string]string

// add keeps the first source of a token, while there is room.
func (r records) add(token, source string) {
	if _, ok := r[token]; !ok && len(r) < maxRecords {
		r[token] = source
	}
}

func (s *server) answer(from net.Addr) answer {
	source := ""
	if at, err := netip.ParseAddrPort(from.String()); err == nil {
		source = at.Addr().Unmap().WithZone("").String()
	}
	return answer{Name: s.name, Source: source}
}

func (a answer) raw() []byte {
	raw, _ := json.Marshal(a) // of texts and a flag: it never fails
	return raw
}
