// Command server is what the pods of the end-to-end test run: it answers with
// its name, and asks others for theirs. With the argument "pause" it is the
// process of the sandbox, which does nothing, and with "end" that of a Job, which ends.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

const (
	address = ":8080"
	// reachTimeout bounds one question to another pod, its retries included.
	reachTimeout = time.Minute
	tryTimeout   = 2 * time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if len(os.Args) > 1 {
		if os.Args[1] == "pause" {
			<-ctx.Done()
		}
		return
	}
	if err := serve(ctx); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "server:", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /name", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) })
	// Who answers at each of the addresses: a name, or "error: ...".
	mux.HandleFunc("GET /reach", func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(reach(r.Context(), r.URL.Query()["addr"]))
	})
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	packets, err := (&net.ListenConfig{}).ListenPacket(ctx, "udp", address)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = packets.Close() })
	go echo(packets)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: reachTimeout}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.Serve(listener); ctx.Err() == nil {
		return err
	}
	return nil
}

// echo returns each packet, until the socket is closed.
func echo(packets net.PacketConn) {
	var packet [1 << 10]byte
	for {
		n, from, err := packets.ReadFrom(packet[:])
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_, _ = packets.WriteTo(packet[:n], from)
		}
	}
}

func reach(ctx context.Context, addrs []string) map[string]string {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	var (
		lock    sync.Mutex
		answers = map[string]string{}
		all     sync.WaitGroup
	)
	for _, addr := range addrs {
		all.Go(func() {
			answer := ask(ctx, addr)
			lock.Lock()
			defer lock.Unlock()
			answers[addr] = answer
		})
	}
	all.Wait()
	return answers
}

// ask tries again until ctx ends: rules for a new Service take a moment.
func ask(ctx context.Context, addr string) string {
	client := &http.Client{Timeout: tryTimeout, Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		name, err := askOnce(ctx, client, addr)
		if err == nil {
			return name
		}
		select {
		case <-ctx.Done():
			return "error: " + err.Error()
		case <-time.After(tryTimeout / 20):
		}
	}
}

func askOnce(ctx context.Context, client *http.Client, addr string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/name", nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	name, err := io.ReadAll(io.LimitReader(response.Body, 1<<10))
	if err != nil {
		return "", err
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", response.Status, name)
	}
	return string(name), nil
}
