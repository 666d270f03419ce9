package slim

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// codecs decode one kind of object from a watch. client-go decodes everything that they
// do not.
type codecs struct {
	serializer.WithoutConversionCodecFactory
	kind *schema.GroupVersionKind
	// mediaType is the media type in which the API server sends the kind.
	mediaType string
	// splitEvent splits an event without copying its object, and returns false if it
	// cannot.
	splitEvent func(data []byte, into *metav1.WatchEvent) bool
	// decodeObject decodes an object. After an error, client-go decodes it.
	decodeObject func(data []byte) (runtime.Object, error)
}

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (c codecs) SupportedMediaTypes() []runtime.SerializerInfo {
	types := slices.Clone(c.WithoutConversionCodecFactory.SupportedMediaTypes())
	for i := range types {
		if types[i].MediaType != c.mediaType {
			continue
		}
		stream := *types[i].StreamSerializer
		stream.Serializer = eventDecoder{stream.Serializer, c.splitEvent}
		types[i].StreamSerializer = &stream
	}
	return types
}

// DecoderToVersion implements runtime.NegotiatedSerializer.
func (c codecs) DecoderToVersion(d runtime.Decoder, gv runtime.GroupVersioner) runtime.Decoder {
	return objectDecoder{c.WithoutConversionCodecFactory.DecoderToVersion(d, gv), c}
}

// eventDecoder tries splitEvent before the Serializer.
type eventDecoder struct {
	runtime.Serializer
	splitEvent func([]byte, *metav1.WatchEvent) bool
}

// Decode implements runtime.Decoder.
func (d eventDecoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if event, ok := into.(*metav1.WatchEvent); ok && d.splitEvent(data, event) {
		return event, defaults, nil
	}
	return d.Serializer.Decode(data, defaults, into)
}

// objectDecoder tries codecs.decodeObject before the Decoder.
type objectDecoder struct {
	runtime.Decoder
	codecs codecs
}

// Decode implements runtime.Decoder.
func (d objectDecoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if into == nil {
		if o, err := d.codecs.decodeObject(data); err == nil {
			return o, d.codecs.kind, nil
		}
	}
	return d.Decoder.Decode(data, defaults, into)
}
