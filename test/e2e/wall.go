package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"fairlead.dev/fairlead/test/harness"
)

const (
	// clockedDir has the programs of hack/build-clocked.sh, in the directory of the programs.
	clockedDir = "clocked"
	// wallVariable names the file of a program's wall clock (clocked/wall.go.txt).
	wallVariable = "FAIRLEAD_E2E_WALL"
	// maxWall is how wrong a wall clock is at most. The certificates of the
	// control plane are valid from an hour before its start.
	maxWall = 50 * time.Minute
	// maxControllerAhead is how far the wall clock of a controller is ahead at most. The audit
	// reports each address that was freed more than a minute later than the audit runs.
	maxControllerAhead = 50 * time.Second
)

// wallClock is the file of a wall clock: the seconds by which it is ahead.
type wallClock string

// set sets the clock. The programs that use it see that at once.
func (c wallClock) set(ahead time.Duration) error {
	file, err := os.OpenFile(string(c), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("wall clock: %w", err)
	}
	defer file.Close()
	raw := binary.NativeEndian.AppendUint64(nil, uint64(int64(ahead.Seconds()))) //nolint:gosec // the program reads it as signed
	if _, err := file.WriteAt(raw, 0); err != nil {
		return fmt.Errorf("wall clock: %w", err)
	}
	return nil
}

// jump sets the clock to a wrong time: behind by maxWall at most, or ahead by ahead at most.
func (c wallClock) jump(random *rand.Rand, ahead time.Duration) error {
	return c.set(time.Duration(random.Int64N(int64(maxWall+ahead))) - maxWall)
}

// give has a program use the clock.
func (c wallClock) give(p *harness.Process) {
	p.Cmd.Env = append(slices.Clone(p.Cmd.Env), wallVariable+"="+string(c))
}
