package devices

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"

	"google.golang.org/protobuf/encoding/protowire"
)

// maxReply bounds an answer, in bytes, as the kubelet's own clients do.
const maxReply = 16 << 20

// prefix is the length of what precedes a message: a byte that tells whether it is
// compressed, and its length.
const prefix = 5

// service is the path of the methods.
const service = "http://kubelet/v1.PodResourcesLister/"

// call calls a method with a message, and returns the message of the answer.
func (k *Kubelet) call(ctx context.Context, method string, message []byte) ([]byte, error) {
	body := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))) //nolint:gosec // the names of a pod
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, service+method, bytes.NewReader(append(body, message...)))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/grpc")
	r.Header.Set("Te", "trailers")
	reply, err := k.client.Do(r)
	if err != nil {
		return nil, errors.Unwrap(err) // without the URL, which is none
	}
	defer reply.Body.Close() //nolint:errcheck // it is read to its end
	raw, err := io.ReadAll(io.LimitReader(reply.Body, maxReply+1))
	switch code, text := outcome(reply); {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", method, err)
	case reply.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s: HTTP status %s", method, reply.Status)
	case len(raw) > maxReply:
		return nil, fmt.Errorf("%s: the answer has more than %d bytes", method, maxReply)
	case code != "0":
		return nil, fmt.Errorf("%s: status %q: %q", method, code, text)
	case len(raw) < prefix || raw[0] != 0 || int(binary.BigEndian.Uint32(raw[1:prefix])) != len(raw)-prefix:
		return nil, fmt.Errorf("%s: the answer is not one uncompressed message", method)
	}
	return raw[prefix:], nil
}

// outcome returns the status of an answer that was read, with its text. An answer without a
// message has it among its headers.
func outcome(r *http.Response) (code, text string) {
	for _, h := range []http.Header{r.Trailer, r.Header} {
		if code := h.Get("Grpc-Status"); code != "" {
			return code, h.Get("Grpc-Message")
		}
	}
	return "", ""
}

// Field numbers from api.proto of k8s.io/kubelet/pkg/apis/podresources/v1.
const (
	askName, askNamespace                = 1, 2
	replyPod                             = 1
	podName, podNamespace, podContainers = 1, 2, 3
	containerDevices                     = 2
	devicesResource, devicesIDs          = 1, 2
)

// pod is a pod with its devices by resource.
type pod struct {
	namespace, name string
	devices         map[string][]string
}

func getRequest(namespace, name string) []byte {
	b := protowire.AppendTag(nil, askName, protowire.BytesType)
	b = protowire.AppendString(b, name)
	b = protowire.AppendTag(b, askNamespace, protowire.BytesType)
	return protowire.AppendString(b, namespace)
}

// readPods reads the answer of either method.
func readPods(reply []byte) (pods []pod, err error) {
	err = fields(reply, replyPod, func(_ protowire.Number, raw []byte) error {
		p := pod{devices: map[string][]string{}}
		pods = append(pods, p)
		at := &pods[len(pods)-1]
		return fields(raw, podContainers, func(n protowire.Number, value []byte) error {
			switch n {
			case podName:
				at.name = string(value)
			case podNamespace:
				at.namespace = string(value)
			case podContainers:
				return fields(value, containerDevices, func(n protowire.Number, value []byte) error {
					if n != containerDevices {
						return nil
					}
					return at.add(value)
				})
			default: // its devices alone are read
			}
			return nil
		})
	})
	return pods, err
}

// add adds devices of one resource.
func (p *pod) add(raw []byte) error {
	var resource string
	var ids []string
	err := fields(raw, devicesIDs, func(n protowire.Number, value []byte) error {
		if n == devicesResource {
			resource = string(value)
		} else {
			ids = append(ids, string(value))
		}
		return nil
	})
	p.devices[resource] = append(p.devices[resource], ids...)
	return err
}

// fields calls f with each field of a message that has a length and a number up to last.
func fields(message []byte, last protowire.Number, f func(protowire.Number, []byte) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return fmt.Errorf("the answer cannot be decoded: %w", protowire.ParseError(n))
		}
		message = message[n:]
		size := protowire.ConsumeFieldValue(number, kind, message)
		if size < 0 {
			return fmt.Errorf("the answer cannot be decoded: %w", protowire.ParseError(size))
		}
		if kind == protowire.BytesType && number <= last {
			value, _ := protowire.ConsumeBytes(message)
			if err := f(number, value); err != nil {
				return err
			}
		}
		message = message[size:]
	}
	return nil
}
