package slim

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// codecs read one kind of object from a watch, and leave everything else to
// client-go's.
type codecs struct {
	serializer.WithoutConversionCodecFactory
	kind *schema.GroupVersionKind
	// mediaType is what the API server sends the kind as.
	mediaType string
	// framer finds where events end; client-go's when nil.
	framer runtime.Framer
	// event takes an event apart without a copy of its object, and says whether it
	// could.
	event func(data []byte, into *metav1.WatchEvent) bool
	// object decodes one. An error means no more than that somebody else has to.
	object func(data []byte) (runtime.Object, error)
}

// SupportedMediaTypes is of runtime.NegotiatedSerializer.
func (c codecs) SupportedMediaTypes() []runtime.SerializerInfo {
	types := slices.Clone(c.WithoutConversionCodecFactory.SupportedMediaTypes())
	for i := range types {
		if types[i].MediaType != c.mediaType {
			continue
		}
		stream := *types[i].StreamSerializer
		stream.Serializer = eventDecoder{stream.Serializer, c.event}
		if c.framer != nil {
			stream.Framer = c.framer
		}
		types[i].StreamSerializer = &stream
	}
	return types
}

// DecoderToVersion is of runtime.NegotiatedSerializer.
func (c codecs) DecoderToVersion(d runtime.Decoder, gv runtime.GroupVersioner) runtime.Decoder {
	return objectDecoder{c.WithoutConversionCodecFactory.DecoderToVersion(d, gv), c}
}

// eventDecoder tries event first.
type eventDecoder struct {
	runtime.Serializer
	event func([]byte, *metav1.WatchEvent) bool
}

// Decode is of runtime.Decoder.
func (d eventDecoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if event, ok := into.(*metav1.WatchEvent); ok && d.event(data, event) {
		return event, defaults, nil
	}
	return d.Serializer.Decode(data, defaults, into)
}

// objectDecoder tries codecs.object first.
type objectDecoder struct {
	runtime.Decoder
	codecs codecs
}

// Decode is of runtime.Decoder.
func (d objectDecoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if into == nil {
		if o, err := d.codecs.object(data); err == nil {
			return o, d.codecs.kind, nil
		}
	}
	return d.Decoder.Decode(data, defaults, into)
}
