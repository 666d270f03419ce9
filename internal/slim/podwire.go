package slim

import (
	"bytes"
	"errors"
	"slices"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/internal/pod"
)

var podKind = corev1.SchemeGroupVersion.WithKind("Pod")

// codecs returns codecs for pods, which the API server sends as protobuf.
func (s *pods) codecs(standard serializer.WithoutConversionCodecFactory) codecs {
	return codecs{
		WithoutConversionCodecFactory: standard,
		kind:                          &podKind,
		mediaType:                     runtime.ContentTypeProtobuf,
		splitEvent:                    func(data []byte, into *metav1.WatchEvent) bool { return openEvent(data, into) == nil },
		decodeObject:                  func(data []byte) (runtime.Object, error) { return s.decode(data) },
	}
}

func openEvent(data []byte, event *metav1.WatchEvent) error {
	return fields(data, func(f field) error {
		switch f.number {
		case eventType:
			event.Type = string(f.bytes)
		case eventObject:
			return fields(f.bytes, func(f field) error {
				if f.number == extensionRaw {
					event.Object.Raw = f.bytes
				}
				return nil
			})
		}
		return nil
	})
}

// errNoPod means that the data is not a pod in protobuf.
var errNoPod = errors.New("no pod in protobuf")

// Field numbers from generated.proto of k8s.io/apimachinery/pkg/runtime,
// k8s.io/apimachinery/pkg/apis/meta/v1 and k8s.io/api/core/v1.
const (
	eventType, eventObject, extensionRaw                   = 1, 2, 1
	unknownType, unknownRaw, unknownEncoding               = 1, 2, 3
	typeVersion, typeKind                                  = 1, 2
	podMeta, podSpec, podStatus                            = 1, 2, 3
	metaName, metaNamespace, metaUID, metaVersion          = 1, 3, 5, 6
	metaCreated, metaDeleted, metaGrace                    = 8, 9, 10
	metaLabels, metaAnnotations, metaOwners                = 11, 12, 13
	entryKey, entryValue                                   = 1, 2
	ownerKind, ownerName, ownerUID, ownerVersion, ownerCtl = 1, 3, 4, 5, 6
	specNodeName, specHostNetwork, specContainers          = 10, 11, 2
	containerResources, resourcesRequests, quantityText    = 8, 2, 1
	statusPhase                                            = 1
)

// decode decodes those fields of a pod that slim keeps. It fails if data is not a pod
// in protobuf (k8s.io/apimachinery/pkg/runtime/serializer/protobuf).
func (s *pods) decode(data []byte) (*corev1.Pod, error) {
	raw, err := podOf(data)
	if err != nil {
		return nil, err
	}
	return s.decodeRaw(raw)
}

// decodeRaw is decode without an envelope.
func (s *pods) decodeRaw(raw []byte) (*corev1.Pod, error) {
	p := &corev1.Pod{} // without its kind, as client-go returns it
	hasMeta := false
	return p, fields(raw, func(f field) error {
		switch f.number {
		case podMeta:
			if hasMeta {
				return errNoPod // two parts would have to be merged; no API server sends them
			}
			hasMeta = true
			return s.decodeMeta(f.bytes, &p.ObjectMeta)
		case podSpec:
			return fields(f.bytes, func(f field) error {
				switch f.number {
				case specNodeName:
					p.Spec.NodeName = s.words.of(f.bytes)
				case specHostNetwork:
					p.Spec.HostNetwork = f.varint != 0
				case specContainers:
					return decodeRequests(f.bytes, &p.Spec)
				}
				return nil
			})
		case podStatus:
			return fields(f.bytes, func(f field) error {
				if f.number == statusPhase {
					p.Status.Phase = corev1.PodPhase(s.words.of(f.bytes))
				}
				return nil
			})
		}
		return nil
	})
}

// decodeRequests adds what a container requests of device plugins to the pod's.
func decodeRequests(container []byte, spec *corev1.PodSpec) error {
	var requests corev1.ResourceList
	err := fields(container, func(f field) error {
		if f.number != containerResources {
			return nil
		}
		return fields(f.bytes, func(f field) error {
			if f.number != resourcesRequests {
				return nil
			}
			return decodeRequest(f.bytes, &requests)
		})
	})
	pod.AddRequests(spec, requests)
	return err
}

// decodeRequest adds an entry of a container's requests, if it may be of a device plugin.
func decodeRequest(entry []byte, requests *corev1.ResourceList) error {
	var name, amount []byte
	err := fields(entry, func(f field) error {
		switch f.number {
		case entryKey:
			name = f.bytes
		case entryValue:
			return fields(f.bytes, func(f field) error {
				if f.number == quantityText {
					amount = f.bytes
				}
				return nil
			})
		}
		return nil
	})
	if err != nil || bytes.IndexByte(name, '/') < 0 { // cpu, memory: as a rule
		return err
	}
	q, err := resource.ParseQuantity(string(amount))
	if err != nil {
		return errors.Join(errNoPod, err)
	}
	if *requests == nil {
		*requests = corev1.ResourceList{}
	}
	(*requests)[corev1.ResourceName(name)] = q
	return nil
}

// podOf returns the pod in an envelope.
func podOf(data []byte) ([]byte, error) {
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
	return raw, nil
}

// decodeMeta decodes the kept fields of metadata.
func (s *pods) decodeMeta(data []byte, meta *metav1.ObjectMeta) error {
	var name, uid, version, wire []byte
	var owner *metav1.OwnerReference
	err := fields(data, func(f field) error {
		switch f.number {
		case metaName:
			name = f.bytes
		case metaNamespace:
			meta.Namespace = s.words.of(f.bytes)
		case metaUID:
			uid = f.bytes
		case metaVersion:
			version = f.bytes
		case metaCreated:
			return meta.CreationTimestamp.Unmarshal(f.bytes)
		case metaDeleted:
			meta.DeletionTimestamp = new(metav1.Time)
			return meta.DeletionTimestamp.Unmarshal(f.bytes)
		case metaGrace:
			meta.DeletionGracePeriodSeconds = new(int64(f.varint))
		case metaLabels:
			wire = append(wire, f.whole...)
		case metaAnnotations:
			return annotate(f.bytes, meta)
		case metaOwners:
			if o, err := s.decodeOwner(f.bytes); owner == nil {
				owner = o
				return err
			}
		}
		return nil
	})
	own := string(slices.Concat(name, uid, version)) // one piece of memory, as in pack
	meta.Name, own = own[:len(name)], own[len(name):]
	meta.UID, meta.ResourceVersion = types.UID(own[:len(uid)]), own[len(uid):]
	if size, tooLong := labelsTooLong(wire); tooLong {
		wire = nil
		metav1.SetMetaDataAnnotation(meta, pod.AnnotationLabelsLeftOut, strconv.Itoa(size))
	}
	switch {
	case err != nil:
	case owner != nil:
		meta.OwnerReferences, meta.Labels, err = s.decoded(*owner, wire)
	case wire != nil:
		meta.Labels, err = decodeLabels(wire)
	}
	return err
}

// decodeOwner decodes an owner reference; nil if it is not that of a controller.
func (s *pods) decodeOwner(data []byte) (*metav1.OwnerReference, error) {
	var kind, name, uid, version []byte
	controls := false
	err := fields(data, func(f field) error {
		switch f.number {
		case ownerKind:
			kind = f.bytes
		case ownerName:
			name = f.bytes
		case ownerUID:
			uid = f.bytes
		case ownerVersion:
			version = f.bytes
		case ownerCtl:
			controls = f.varint != 0
		}
		return nil
	})
	if err != nil || !controls || max(len(version), len(kind), len(name), len(uid)) > maxOwner {
		return nil, err
	}
	return &metav1.OwnerReference{
		APIVersion: s.words.of(version), Kind: s.words.of(kind), Name: s.words.of(name), UID: types.UID(s.words.of(uid)), Controller: &isController,
	}, nil
}

// annotate keeps the part of an annotation that pod.Kept returns.
func annotate(entry []byte, meta *metav1.ObjectMeta) error {
	key, value, err := decodeEntry(entry)
	if err != nil {
		return err
	}
	if kept, ok := pod.Kept(key, value); ok {
		metav1.SetMetaDataAnnotation(meta, string(key), kept)
	}
	return nil
}

// decodeLabels decodes the entries of a map of labels, each with its tag.
func decodeLabels(wire []byte) (map[string]string, error) {
	if len(wire) == 0 {
		return nil, nil
	}
	all := map[string]string{}
	return all, fields(wire, func(f field) error {
		key, value, err := decodeEntry(f.bytes)
		all[string(key)] = string(value)
		return err
	})
}

// labelsTooLong reports whether labels have more than pod.MaxLabels bytes, without decoding
// them into a map, and returns how many they have.
func labelsTooLong(wire []byte) (size int, tooLong bool) {
	if len(wire) <= pod.MaxLabels {
		return 0, false
	}
	_ = fields(wire, func(f field) error { // decodeLabels finds the unreadable ones
		key, value, err := decodeEntry(f.bytes)
		size += len(key) + len(value)
		return err
	})
	return size, size > pod.MaxLabels
}

func decodeEntry(data []byte) (key, value []byte, err error) {
	err = fields(data, func(f field) error {
		switch f.number {
		case entryKey:
			key = f.bytes
		case entryValue:
			value = f.bytes
		}
		return nil
	})
	return key, value, err
}

// field is a field of a protobuf message. Depending on its type, its value is in bytes
// or in varint.
type field struct {
	number int
	whole  []byte
	bytes  []byte
	varint uint64
}

// fields calls visit with each field of a message. Kubernetes uses only the types varint
// and bytes here.
func fields(message []byte, visit func(field) error) error {
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
		if err := visit(f); err != nil {
			return err
		}
	}
	return nil
}
