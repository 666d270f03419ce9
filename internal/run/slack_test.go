//go:build linux

package run

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// asDaemon in the environment makes the test's program call Slacken and print its process
// ID, arguments and slack.
const asDaemon = "FAIRLEAD_TEST_SLACKEN"

func TestMain(m *testing.M) {
	if os.Getenv(asDaemon) != "" {
		Slacken()
		own, _ := os.ReadFile("/proc/self/timerslack_ns")
		fmt.Print(os.Getpid(), " ", os.Args[1:], " ", os.Getenv(slackGiven), strings.TrimSpace(string(own)))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Slacken keeps the process ID that a supervisor started, and the arguments. It removes
// its mark from the environment of child processes.
func TestSlacken(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "--config", "a file")
	cmd.Env = append(os.Environ(), asDaemon+"=1")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, &out)
	}
	want := strconv.Itoa(cmd.Process.Pid) + " [--config a file] " + strconv.FormatInt(slack.Nanoseconds(), 10)
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("process, arguments and slack (-want +got):\n%s", diff)
	}
}
