package run

import (
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// slack is how late the kernel may wake a thread that sleeps.
	slack = time.Millisecond
	// slackGiven in the environment says that this process has it.
	slackGiven = "FAIRLEAD_TIMER_SLACK"
)

// Slacken lets the threads of a daemon sleep up to a millisecond longer than they
// ask for. Go's own watch over its threads asks for 20 µs, again and again while
// anything runs, and each time takes up to 20 µs of a virtual machine's processor:
// a sixth of it, while a pod is waiting.
//
// Go starts that thread before main, and a thread has the slack of the one that
// made it (PR_SET_TIMERSLACK in prctl(2)), which execve keeps: so the process
// executes its program once more. Where it cannot, all is as without.
func Slacken() {
	if os.Getenv(slackGiven) != "" { //nolint:forbidigo // its own word, and nobody's configuration
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
		_ = unix.Exec(program, os.Args, append(os.Environ(), slackGiven+"=1")) //nolint:forbidigo // handed on as it is
	}
}
