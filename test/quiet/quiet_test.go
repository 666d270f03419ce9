package quiet

import (
	"testing"

	"github.com/prometheus/procfs"
)

func TestProcessorTime(t *testing.T) {
	idle, all, err := ProcessorTime()
	if err != nil || idle < 0 || all <= idle {
		t.Errorf("%v s idle of %v s, %v; want less than all of it", idle, all, err)
	}
	stat := procfs.CPUStat{User: 10, Nice: 1, System: 20, Idle: 300, Iowait: 4, IRQ: 5, SoftIRQ: 6, Steal: 7, Guest: 8, GuestNice: 9}
	if idle, all := sumUp(stat); idle != 304 || all != 353 {
		t.Errorf("%v of %v; want 304 of 353", idle, all)
	}
}
