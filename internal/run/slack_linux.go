package run

import (
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// slack is the delay with which the kernel may wake a sleeping thread.
	slack = time.Millisecond
	// slackGiven is set in the environment if this process has the slack.
	slackGiven = "FAIRLEAD_TIMER_SLACK"
)

// Slacken lets the threads of a daemon sleep up to a millisecond longer than they
// request. The monitor thread of Go's runtime repeatedly sleeps 20 µs while goroutines
// run, and each time takes up to 20 µs of a virtual machine's processor: a sixth of it,
// while a pod is waiting.
//
// Go starts that thread before main, and a thread inherits the slack of the thread that
// created it (PR_SET_TIMERSLACK in prctl(2)). execve keeps the slack, so the process
// executes its program once more. If it cannot, it continues without the slack.
func Slacken() {
	if os.Getenv(slackGiven) != "" { //nolint:forbidigo // a mark of the process itself, not configuration
		_ = os.Unsetenv(slackGiven)
		return
	}
	program, err := os.Executable()
	if err != nil {
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack.Nanoseconds()), 0, 0, 0) == nil {
		_ = unix.Exec(program, os.Args, append(os.Environ(), slackGiven+"=1")) //nolint:forbidigo // passed on unchanged
	}
}
