package slim

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/watch"

	"fairlead.dev/fairlead/api/v1alpha1"
)

var (
	attachmentKind     = v1alpha1.GroupVersion.WithKind("PodAttachment")
	attachmentListKind = metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "PodAttachmentList"}
)

// attachmentCodecs returns codecs for PodAttachments. The API server sends custom
// resources as JSON. client-go scans the text of each event seven times, these codecs
// once (with the future encoding/json/v2 of Go).
func attachmentCodecs(standard serializer.WithoutConversionCodecFactory) codecs {
	return codecs{
		WithoutConversionCodecFactory: standard,
		kind:                          &attachmentKind,
		mediaType:                     runtime.ContentTypeJSON,
		framer:                        lineFramer{jsonserializer.Framer},
		splitEvent:                    splitEvent,
		decodeObject:                  func(data []byte) (runtime.Object, error) { return decodeAttachment(data) },
	}
}

// decodeAttachment decodes a PodAttachment without its managed fields.
func decodeAttachment(data []byte) (*v1alpha1.PodAttachment, error) {
	a := &v1alpha1.PodAttachment{}
	if err := json.Unmarshal(data, a, decodeOptions); err != nil {
		return nil, err
	}
	return a, ofKind(a)
}

// ofKind checks that the decoded object is a PodAttachment, and removes its kind as
// client-go does.
func ofKind(a *v1alpha1.PodAttachment) error {
	if a.Kind != attachmentKind.Kind || a.APIVersion != v1alpha1.GroupVersion.String() {
		return fmt.Errorf("a %s of %s", a.Kind, a.APIVersion)
	}
	a.TypeMeta = metav1.TypeMeta{}
	return nil
}

// readAttachments reads a list of PodAttachments.
func readAttachments(r io.Reader) (*internalversion.List, error) {
	d := jsontext.NewDecoder(r)
	if t, err := d.ReadToken(); err != nil || t.Kind() != '{' {
		return nil, errors.Join(errNoList, err)
	}
	list, is := &internalversion.List{}, metav1.TypeMeta{}
	for d.PeekKind() == '"' {
		name, err := d.ReadToken()
		if err != nil {
			return nil, err
		}
		switch name.String() {
		case "items":
			err = readItems(d, list)
		case "metadata":
			err = json.UnmarshalDecode(d, &list.ListMeta)
		case "apiVersion":
			err = json.UnmarshalDecode(d, &is.APIVersion)
		case "kind":
			err = json.UnmarshalDecode(d, &is.Kind)
		default:
			err = d.SkipValue()
		}
		if err != nil {
			return nil, err
		}
	}
	if _, err := d.ReadToken(); err != nil { // the end of the object
		return nil, err
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) || is != attachmentListKind || list.ResourceVersion == "" {
		return nil, errors.Join(errNoList, err)
	}
	return list, nil
}

func readItems(d *jsontext.Decoder, list *internalversion.List) error {
	if t, err := d.ReadToken(); err != nil || t.Kind() != '[' {
		return errors.Join(errNoList, err)
	}
	for d.PeekKind() == '{' {
		a := &v1alpha1.PodAttachment{}
		if err := json.UnmarshalDecode(d, a, decodeOptions); err != nil {
			return err
		}
		if err := ofKind(a); err != nil {
			return err
		}
		list.Items = append(list.Items, a)
	}
	_, err := d.ReadToken() // the end of the array, or a syntax error
	return err
}

// decodeOptions skip managed fields, and decode times without an intermediate string.
var decodeOptions = json.WithUnmarshalers(json.JoinUnmarshalers(
	json.UnmarshalFromFunc(func(d *jsontext.Decoder, _ *[]metav1.ManagedFieldsEntry) error { return d.SkipValue() }),
	json.UnmarshalFromFunc(func(d *jsontext.Decoder, t *metav1.Time) error { return decodeTime(d, &t.Time) }),
	json.UnmarshalFromFunc(func(d *jsontext.Decoder, t *metav1.MicroTime) error { return decodeTime(d, &t.Time) }),
))

// decodeTime decodes a time as Kubernetes does: in the time zone of the process.
func decodeTime(d *jsontext.Decoder, t *time.Time) error {
	if err := json.UnmarshalDecode(d, t); err != nil {
		return err
	}
	if !t.IsZero() {
		*t = t.Local()
	}
	return nil
}

// splitEvent splits an event in the API server's format, and returns false if the event
// has another format. It does not check the object. If further fields follow it,
// decoding the object fails, and the watch starts again.
func splitEvent(data []byte, event *metav1.WatchEvent) bool {
	rest, ok := bytes.CutPrefix(data, []byte(`{"type":"`))
	if !ok {
		return false
	}
	kind, rest, ok := bytes.Cut(rest, []byte(`","object":`))
	if !ok {
		return false
	}
	switch watch.EventType(kind) {
	case watch.Added, watch.Modified, watch.Deleted, watch.Bookmark, watch.Error:
	default:
		return false
	}
	object, ok := bytes.CutSuffix(bytes.TrimSpace(rest), []byte("}"))
	if !ok {
		return false
	}
	event.Type, event.Object.Raw = string(kind), object
	return true
}

// lineFramer splits a stream into events at newlines: the API server, like
// encoding/json, writes one after each event and none inside.
type lineFramer struct{ runtime.Framer }

// NewFrameReader implements runtime.Framer.
func (lineFramer) NewFrameReader(r io.ReadCloser) io.ReadCloser {
	return &lineReader{r: r, lines: bufio.NewReaderSize(r, 64<<10)}
}

// lineReader returns one line with each Read. If the line is longer than the buffer,
// each part but the last is returned with io.ErrShortBuffer.
type lineReader struct {
	r     io.Closer
	lines *bufio.Reader
	// rest is the unread part of the current line.
	rest []byte
}

// Read implements io.Reader.
func (l *lineReader) Read(into []byte) (int, error) {
	for len(l.rest) == 0 {
		line, err := l.lines.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			// The next call overwrites the reader's buffer.
			long := bytes.Clone(line)
			line, err = l.lines.ReadBytes('\n')
			line = append(long, line...)
		}
		if err != nil {
			if errors.Is(err, io.EOF) && len(line) > 0 {
				err = io.ErrUnexpectedEOF
			}
			return 0, err
		}
		l.rest = bytes.TrimSpace(line)
	}
	n := copy(into, l.rest)
	if l.rest = l.rest[n:]; len(l.rest) > 0 {
		return n, io.ErrShortBuffer
	}
	return n, nil
}

// Close implements io.Closer.
func (l *lineReader) Close() error { return l.r.Close() }
