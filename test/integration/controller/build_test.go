package controller

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"fairlead.dev/fairlead/test/integration/sources"
)

// source is the folder of the controller's main package.
const source = "../../../cmd/fairlead-controller"

// built is the folder of the programs that the tests build.
var built string

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	ctrl.SetLogger(logr.Discard())
	var err error
	if built, err = os.MkdirTemp("", "fairlead-controller-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(built) //nolint:errcheck // the process ends
	return m.Run()
}

// buildController builds the controller, with the race detector if the tests run with it, and returns its path.
var buildController = sync.OnceValues(func() (string, error) {
	if err := sources.Look(source); err != nil {
		return "", err
	}
	program := filepath.Join(built, "fairlead-controller")
	command := []string{"build", "-o", program}
	if raced {
		command = append(command, "-race")
	}
	if out, err := exec.Command("go", append(command, source)...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the controller: %w: %s", err, out)
	}
	return program, nil
})
