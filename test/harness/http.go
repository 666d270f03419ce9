package harness

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
)

// AtSocket returns a client of the server on a unix socket, whatever the host of a URL is.
func AtSocket(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
}

// Get returns the body at a URL, or an error if the status is not 200.
func Get(ctx context.Context, client *http.Client, url string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	answer, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return "", err
	}
	if answer.StatusCode != http.StatusOK {
		return "", fmt.Errorf("GET %s: %s: %s", url, answer.Status, bytes.TrimSpace(body))
	}
	return string(body), nil
}
