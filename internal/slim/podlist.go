package slim

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
)

// Field numbers from generated.proto of k8s.io/api/core/v1.
const podListMeta, podListItems = 1, 2

// maxPod limits a pod in a list, in bytes. etcd accepts 1.5 MiB.
const maxPod = 4 << 20

// readList reads a list of pods in protobuf. It has an envelope like a pod, and the
// content is decoded as it arrives.
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

// end reads the fields after the content, which may contain its encoding. It rejects a
// second content, which would replace the first.
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
	// left is the number of unread bytes of the content.
	left int
	// buffer has the content of the last field.
	buffer []byte
}

// open reads up to the beginning of the content.
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

// field reads a field. The content is valid until the next call. The error is io.EOF at
// the end.
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

// head reads the number and the length of a field. Kubernetes uses only fields with a
// length here.
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

// ReadByte reads a byte of a field's head and counts it, since a number may be encoded
// in more bytes than it needs.
func (l *listReader) ReadByte() (byte, error) {
	l.left--
	return l.Reader.ReadByte()
}

// unexpected turns io.EOF in the middle of a field into io.ErrUnexpectedEOF.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
