package slim

import (
	"bytes"
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// podCodecs decode pods that are sent as protobuf, and leave everything else to
// client-go.
type podCodecs struct {
	serializer.WithoutConversionCodecFactory
}

// DecoderToVersion is of runtime.NegotiatedSerializer.
func (c podCodecs) DecoderToVersion(s runtime.Decoder, gv runtime.GroupVersioner) runtime.Decoder {
	return podDecoder{c.WithoutConversionCodecFactory.DecoderToVersion(s, gv)}
}

// podDecoder tries decodePod first.
type podDecoder struct{ runtime.Decoder }

var podKind = corev1.SchemeGroupVersion.WithKind("Pod")

// Decode is of runtime.Decoder.
func (d podDecoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if into == nil {
		if p, err := decodePod(data); err == nil {
			return p, &podKind, nil
		}
	}
	return d.Decoder.Decode(data, defaults, into)
}

// errNoPod says that data is not what decodePod reads.
var errNoPod = errors.New("no pod in protobuf")

// Numbers of fields: generated.proto of k8s.io/apimachinery/pkg/runtime,
// k8s.io/apimachinery/pkg/apis/meta/v1 and k8s.io/api/core/v1.
const (
	unknownType, unknownRaw, unknownEncoding = 1, 2, 3
	typeVersion, typeKind                    = 1, 2
	podMeta, podSpec, podStatus              = 1, 2, 3
	metaManagedFields                        = 17
	specNodeName, specHostNetwork            = 10, 11
	statusPhase                              = 1
)

// decodePod decodes of a pod its metadata, without the managed fields, its node,
// whether it is on the host's network, and its phase. An error means no more
// than that somebody else has to decode it: it says so of all that is not a pod
// in protobuf (k8s.io/apimachinery/pkg/runtime/serializer/protobuf).
func decodePod(data []byte) (*corev1.Pod, error) {
	data, ok := bytes.CutPrefix(data, []byte("k8s\x00"))
	if !ok {
		return nil, errNoPod
	}
	var version, kind, raw []byte
	encoded := false
	err := fields(data, func(f field) error {
		switch f.number {
		case unknownType:
			return fields(f.bytes, func(f field) error {
				switch f.number {
				case typeVersion:
					version = f.bytes
				case typeKind:
					kind = f.bytes
				}
				return nil
			})
		case unknownRaw:
			raw = f.bytes
		case unknownEncoding:
			encoded = len(f.bytes) > 0
		}
		return nil
	})
	if err != nil || string(version) != "v1" || string(kind) != "Pod" || raw == nil || encoded {
		return nil, errors.Join(errNoPod, err)
	}
	p := &corev1.Pod{} // without its kind, as client-go returns it
	return p, fields(raw, func(f field) error {
		switch f.number {
		case podMeta:
			return decodeMeta(f.bytes, &p.ObjectMeta)
		case podSpec:
			return fields(f.bytes, func(f field) error {
				switch f.number {
				case specNodeName:
					p.Spec.NodeName = string(f.bytes)
				case specHostNetwork:
					p.Spec.HostNetwork = f.varint != 0
				}
				return nil
			})
		case podStatus:
			return fields(f.bytes, func(f field) error {
				if f.number == statusPhase {
					p.Status.Phase = corev1.PodPhase(f.bytes)
				}
				return nil
			})
		}
		return nil
	})
}

// decodeMeta decodes metadata without its managed fields, which are often the
// half of it.
func decodeMeta(data []byte, meta *metav1.ObjectMeta) error {
	kept := make([]byte, 0, len(data))
	err := fields(data, func(f field) error {
		if f.number != metaManagedFields {
			kept = append(kept, f.whole...)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return meta.Unmarshal(kept)
}

// field of a protobuf message: its content is bytes or a varint, by its type.
type field struct {
	number int
	whole  []byte
	bytes  []byte
	varint uint64
}

// fields calls look with each field of a message. Kubernetes knows no other
// types than varints and bytes here.
func fields(message []byte, look func(field) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		f := field{number: int(number)}
		var m int
		switch kind {
		case protowire.BytesType:
			f.bytes, m = protowire.ConsumeBytes(message[n:])
		case protowire.VarintType:
			f.varint, m = protowire.ConsumeVarint(message[n:])
		default:
			return errNoPod
		}
		if m < 0 {
			return protowire.ParseError(m)
		}
		f.whole, message = message[:n+m], message[n+m:]
		if err := look(f); err != nil {
			return err
		}
	}
	return nil
}
