package slim

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
)

// Numbers of fields: generated.proto of k8s.io/api/core/v1.
const podListMeta, podListItems = 1, 2

// maxPod bounds a pod in a list, in bytes: etcd takes 1.5 MiB.
const maxPod = 4 << 20

// readList reads a list of pods in protobuf: an envelope as that of a pod, whose
// content is read as it arrives.
func (s *pods) readList(r io.Reader) (*internalversion.List, error) {
	in := &listReader{Reader: bufio.NewReaderSize(r, 64<<10)}
	if err := in.open(); err != nil {
		return nil, err
	}
	list := &internalversion.List{}
	for in.left > 0 {
		number, content, err := in.field()
		if err != nil {
			return nil, err
		}
		switch number {
		case podListMeta:
			if err := list.ListMeta.Unmarshal(content); err != nil {
				return nil, err
			}
		case podListItems:
			p, err := s.decodeRaw(content)
			if err != nil {
				return nil, err
			}
			list.Items = append(list.Items, p)
		}
	}
	if in.left < 0 {
		return nil, errNoList
	}
	return list, in.end(list)
}

// end reads what follows the content: it says how that is encoded, if it is. A
// second content would count instead of the first.
func (l *listReader) end(list *internalversion.List) error {
	for {
		number, content, err := l.field()
		switch {
		case errors.Is(err, io.EOF) && list.ResourceVersion != "":
			return nil
		case err != nil:
			return err
		case number < unknownEncoding, number == unknownEncoding && len(content) > 0:
			return errNoList
		}
	}
}

// listReader reads fields of a protobuf message from a stream.
type listReader struct {
	*bufio.Reader
	// left of the content, in bytes.
	left int
	// buffer has the field that was read last.
	buffer []byte
}

// open reads to where the content begins.
func (l *listReader) open() error {
	var magic [4]byte
	if _, err := io.ReadFull(l, magic[:]); err != nil || string(magic[:]) != "k8s\x00" {
		return errors.Join(errNoList, err)
	}
	number, kind, err := l.field()
	if err != nil || number != unknownType {
		return errors.Join(errNoList, err)
	}
	if !isPodList(kind) {
		return errNoList
	}
	number, length, err := l.head()
	if err != nil || number != unknownRaw {
		return errors.Join(errNoList, err)
	}
	l.left = length
	return nil
}

func isPodList(message []byte) bool {
	var version, kind string
	err := fields(message, func(f field) error {
		switch f.number {
		case typeVersion:
			version = string(f.bytes)
		case typeKind:
			kind = string(f.bytes)
		}
		return nil
	})
	return err == nil && version == "v1" && kind == "PodList"
}

// field reads a field, whose content is there until the next is read. io.EOF says
// that there is none.
func (l *listReader) field() (number int, content []byte, err error) {
	number, length, err := l.head()
	if err != nil {
		return 0, nil, err
	}
	if length > maxPod {
		return 0, nil, errNoList
	}
	if cap(l.buffer) < length {
		l.buffer = make([]byte, max(length, 16<<10))
	}
	content = l.buffer[:length]
	_, err = io.ReadFull(l, content)
	l.left -= length
	return number, content, unexpected(err)
}

// head reads a field's number and length. Kubernetes knows no other fields here
// than those that have one.
func (l *listReader) head() (number, length int, err error) {
	tag, err := binary.ReadUvarint(l)
	if err != nil {
		return 0, 0, err
	}
	n, kind := protowire.DecodeTag(tag)
	if n < protowire.MinValidNumber || kind != protowire.BytesType {
		return 0, 0, errNoList
	}
	size, err := binary.ReadUvarint(l)
	if err != nil {
		return 0, 0, unexpected(err)
	}
	if size > 1<<31 {
		return 0, 0, errNoList
	}
	return int(n), int(size), nil
}

// ReadByte reads a byte of a field's head: numbers need not be as short as they can.
func (l *listReader) ReadByte() (byte, error) {
	l.left--
	return l.Reader.ReadByte()
}

// unexpected is for the end of what is not complete.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
