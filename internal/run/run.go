// Package run has the parts that the daemons share: signals, logging, the metrics and
// health server, and the connection to Kubernetes.
package run

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

// Version is the release. The linker sets it.
var Version = "unreleased"

// SignalContext returns a context that ends on SIGINT or SIGTERM. A second signal ends
// the process at once.
func SignalContext() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// Logging holds the flags of a daemon's log.
type Logging struct {
	// Level is 0 for messages to operators (default), 1 for each pod's steps, 2 for each
	// call. Errors are always printed.
	Level int
	// Format is "text" (default) or "json".
	Format string
}

// Log levels with their audience.
const (
	// LevelOperator is for messages to operators.
	LevelOperator = 0
	// LevelPod is for each step of one pod.
	LevelPod = 1
	// LevelCall is for each call that is made or served.
	LevelCall = 2
)

// AddFlags adds -v and --log-format.
func (l *Logging) AddFlags(fs *pflag.FlagSet) {
	fs.IntVarP(&l.Level, "v", "v", LevelOperator, "log level: 0 for operators, 1 each pod's steps, 2 each call")
	fs.StringVar(&l.Format, "log-format", "text", "text or json")
}

// Start installs one log handler for this process, also for client-go and
// controller-runtime, and returns a context with the logger.
func (l *Logging) Start(ctx context.Context, w io.Writer, program string) (context.Context, error) {
	// logr's V(n) is slog's level -n.
	opts := &slog.HandlerOptions{Level: slog.Level(-l.Level)}
	var h slog.Handler
	switch l.Format {
	case "", "text":
		h = slog.NewTextHandler(w, opts)
	case "json":
		h = slog.NewJSONHandler(w, opts)
	default:
		return nil, fmt.Errorf(`--log-format: %q: must be "text" or "json"`, l.Format)
	}
	log := logr.FromSlogHandler(lateHandler(h)).WithValues("program", program)
	klog.SetLogger(log)
	ctrllog.SetLogger(log)
	return logr.NewContext(ctx, log), nil
}

// KubeConfig returns the client configuration for the API server of a kubeconfig file, or
// of the pod's service account if path is empty; client-go reads a renewed token. The
// client does not limit its requests: the server's priority and fairness does, with more
// information.
func KubeConfig(path, program string) (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	cfg.UserAgent = program + "/" + Version
	cfg.QPS = -1
	return cfg, nil
}
