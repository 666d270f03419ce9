package kube

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Session makes and watches objects, and executes programs in pods.
type Session struct {
	kubernetes.Interface
	connection *Connection
	config     *rest.Config
}

// Session returns a session. It sends no request.
func (c *Connection) Session() (*Session, error) {
	cfg, err := c.config()
	if err != nil {
		return nil, err
	}
	klog.SetLogger(logr.Discard()) // client-go logs what Exec returns as an error
	cfg.Timeout = 0                // of a watch or an execution, the context has it
	api, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return &Session{Interface: api, connection: c, config: cfg}, nil
}

// NodeNetworks returns those of all nodes.
func (s *Session) NodeNetworks(ctx context.Context) ([]v1alpha1.NodeNetwork, error) {
	snap, err := s.connection.Snapshot(ctx, Wanted{Nodes: true})
	return snap.Nodes, err
}

// PodAttachments returns those of a namespace.
func (s *Session) PodAttachments(ctx context.Context, namespace string) ([]v1alpha1.PodAttachment, error) {
	snap, err := s.connection.Snapshot(ctx, Wanted{Records: true, Namespace: namespace})
	return snap.Attachments, err
}

// Exec executes a program in the first container of a pod, and returns its standard output.
// If the program fails, its standard error is a part of the error.
func (s *Session) Exec(ctx context.Context, pod *corev1.Pod, stdin io.Reader, command ...string) ([]byte, error) {
	url := s.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Stdin: true, Stdout: true, Stderr: true, Command: command}, scheme.ParameterCodec).URL()
	socket, err := remotecommand.NewWebSocketExecutor(s.config, "GET", url.String())
	if err != nil {
		return nil, err
	}
	spdy, err := remotecommand.NewSPDYExecutor(s.config, "POST", url)
	if err != nil {
		return nil, err
	}
	// As kubectl does it: API servers before 1.30 have no WebSockets here.
	stream, err := remotecommand.NewFallbackExecutor(socket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return nil, err
	}
	var stdout, stderr bytes.Buffer
	err = stream.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: &stdout, Stderr: &stderr})
	if err != nil {
		if said := bytes.TrimSpace(stderr.Bytes()); len(said) > 0 {
			err = fmt.Errorf("%w: %s", err, said)
		}
		return nil, err
	}
	return stdout.Bytes(), nil
}
