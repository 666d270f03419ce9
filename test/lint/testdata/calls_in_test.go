// at: internal/controller/calls/example_test.go

package calls

import (
	"fmt"
	"os"
	"testing"
	"time"
)

func TestExample(_ *testing.T) {
	fmt.Println(os.Getenv("HOME"))
	_, _ = os.StartProcess("/bin/true", nil, nil)
	time.Sleep(time.Second) // want: forbidigo:sleep
}
