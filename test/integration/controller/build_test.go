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

// buildController builds the controller and returns its path.
var buildController = sync.OnceValues(func() (string, error) { return build("fairlead-controller", "build") })

// buildWithCloud builds the controller with its own driver and the driver of test/cloud, and returns its path. The program
// is the test binary of the main package, which runs the controller if withCloud is in its environment.
var buildWithCloud = sync.OnceValues(func() (string, error) { return build("with-cloud", "test", "-c") })

// withCloud is the environment variable that holds the URL of the cloud.
const withCloud = "FAIRLEAD_TEST_CLOUD"

// build builds a program from the main package, with the race detector if the tests run with it. It returns the path of
// the program.
func build(name string, command ...string) (string, error) {
	if err := sources.Look(source); err != nil {
		return "", err
	}
	program := filepath.Join(built, name)
	if raced {
		command = append(command, "-race")
	}
	out, err := exec.Command("go", append(command, "-o", program, source)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build %s: %w: %s", name, err, out)
	}
	return program, nil
}
