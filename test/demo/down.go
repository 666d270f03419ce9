package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// downTimeout is how long a cluster may take to end.
const downTimeout = time.Minute

// running returns the keeper, nil if none runs.
func (p place) running() (*keeper, error) {
	if _, err := os.Stat(string(p)); errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	unlock, err := p.lock()
	if err == nil {
		unlock()
		return nil, nil
	}
	if !errors.Is(err, errRuns) {
		return nil, err
	}
	var k keeper
	raw, err := os.ReadFile(p.path("keeper.json"))
	if err == nil {
		err = json.Unmarshal(raw, &k)
	}
	if err != nil {
		return nil, fmt.Errorf("the cluster that runs has not said yet where it is: %w", err)
	}
	return &k, nil
}

// down ends the cluster that up has started, prints the end of its log, and returns the
// exit code.
func (s settings) down(stdout, stderr io.Writer) int {
	k, err := s.place().running()
	if err == nil && k == nil {
		_, _ = fmt.Fprintln(stdout, "no cluster of this checkout runs: make up starts one")
		return 0
	}
	if err == nil {
		err = k.end()
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "demo: FAILED: %v\n", err)
		return 1
	}
	log, err := os.ReadFile(s.place().path("log"))
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "demo: FAILED: %v\n", err)
		return 1
	}
	last := string(log[bytes.LastIndex(bytes.TrimSpace(log), []byte("demo: ")):])
	if !strings.HasPrefix(last, "demo: DOWN") {
		_, _ = fmt.Fprint(stderr, last)
		return 1
	}
	_, _ = fmt.Fprint(stdout, last)
	if err := os.RemoveAll(string(s.place())); err != nil {
		_, _ = fmt.Fprintf(stderr, "demo: FAILED: %v\n", err)
		return 1
	}
	return 0
}

// end asks the keeper to end, and waits until it has.
func (k keeper) end() error {
	fd, err := unix.PidfdOpen(k.PID, 0)
	if err != nil {
		return fmt.Errorf("find process %d, which keeps the cluster: %w", k.PID, err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0); err != nil {
		return fmt.Errorf("end process %d, which keeps the cluster: %w", k.PID, err)
	}
	for deadline := time.Now().Add(downTimeout); ; {
		left := time.Until(deadline)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(max(left, 0).Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for process %d: %w", k.PID, err)
		case n > 0:
			return nil
		default:
			return fmt.Errorf("process %d, which keeps the cluster, did not end within %v", k.PID, downTimeout)
		}
	}
}
