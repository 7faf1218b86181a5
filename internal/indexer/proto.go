package indexer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// The messages of indexer.proto are encoded and decoded by hand: they are few, and a list of keys or token ids is then
// read without a call for each element. A field that is not known is skipped, as proto3 demands, so older and newer
// programs understand each other. See https://protobuf.dev/programming-guides/encoding.

// encoder is a message of indexer.proto that this program sends: an answer of the service, or a question of the client.
type encoder interface {
	// appendTo appends the encoded message to dst.
	appendTo(dst []byte) []byte
}

// decoder is a message of indexer.proto that this program receives.
type decoder interface {
	// decode reads an encoded message. It keeps no part of b.
	decode(b []byte) error
}

var errWire = errors.New("not a valid protobuf message")

// field is a field of an encoded message. bytes is set for strings, bytes, messages and packed lists, number otherwise.
type field struct {
	id     protowire.Number
	kind   protowire.Type
	number uint64
	bytes  []byte
}

// eachField calls take for each field of an encoded message. A field of a group, which proto3 does not have, is
// skipped.
func eachField(b []byte, take func(f *field) error) error {
	for len(b) > 0 {
		id, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errWire
		}
		b = b[n:]
		f := field{id: id, kind: kind}
		switch kind {
		case protowire.VarintType:
			f.number, n = protowire.ConsumeVarint(b)
		case protowire.Fixed64Type:
			f.number, n = protowire.ConsumeFixed64(b)
		case protowire.Fixed32Type:
			var v uint32
			v, n = protowire.ConsumeFixed32(b)
			f.number = uint64(v)
		case protowire.BytesType:
			f.bytes, n = protowire.ConsumeBytes(b)
		default:
			if n = protowire.ConsumeFieldValue(id, kind, b); n < 0 {
				return errWire
			}
			b = b[n:]
			continue
		}
		if n < 0 {
			return errWire
		}
		b = b[n:]
		if err := take(&f); err != nil {
			return err
		}
	}
	return nil
}

// text returns a string field.
func (f *field) text() string { return string(f.bytes) }

// small returns a uint32 field, cut to its 32 bits as proto3 demands.
func (f *field) small() uint32 { return uint32(f.number) }

// appendNumbers appends the elements of a repeated uint32 field, which may be packed or single, to dst. more bounds the
// length of dst.
func (f *field) appendNumbers(dst []uint32, most int) ([]uint32, error) {
	if f.kind == protowire.VarintType {
		return append(dst, uint32(f.number)), over(len(dst)+1, most)
	}
	b := f.bytes
	dst = slices.Grow(dst, min(len(b)/2, most))
	for len(b) > 0 {
		// Nearly all token ids have at most three bytes.
		switch {
		case b[0] < 0x80:
			dst = append(dst, uint32(b[0]))
			b = b[1:]
		case len(b) > 1 && b[1] < 0x80:
			dst = append(dst, uint32(b[0]&0x7f)|uint32(b[1])<<7)
			b = b[2:]
		case len(b) > 2 && b[2] < 0x80:
			dst = append(dst, uint32(b[0]&0x7f)|uint32(b[1]&0x7f)<<7|uint32(b[2])<<14)
			b = b[3:]
		default:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return dst, errWire
			}
			dst = append(dst, uint32(v))
			b = b[n:]
		}
		if len(dst) > most {
			return dst, over(len(dst), most)
		}
	}
	return dst, nil
}

// appendFixed appends the elements of a repeated fixed64 field, which may be packed or single, to dst.
func appendFixed[T ~uint64](dst []T, f *field, most int) ([]T, error) {
	if f.kind == protowire.Fixed64Type {
		return append(dst, T(f.number)), over(len(dst)+1, most)
	}
	b := f.bytes
	if len(b)%8 != 0 {
		return dst, errWire
	}
	if err := over(len(dst)+len(b)/8, most); err != nil {
		return dst, err
	}
	dst = slices.Grow(dst, len(b)/8)
	for ; len(b) >= 8; b = b[8:] {
		dst = append(dst, T(binary.LittleEndian.Uint64(b)))
	}
	return dst, nil
}

// appendFixed32 appends the elements of a repeated fixed32 field, which may be packed or single, to dst.
func appendFixed32(dst []uint32, f *field, most int) ([]uint32, error) {
	if f.kind == protowire.Fixed32Type {
		return append(dst, uint32(f.number)), over(len(dst)+1, most)
	}
	b := f.bytes
	if len(b)%4 != 0 {
		return dst, errWire
	}
	if err := over(len(dst)+len(b)/4, most); err != nil {
		return dst, err
	}
	n := len(dst)
	dst = slices.Grow(dst, len(b)/4)[:n+len(b)/4]
	for i := n; len(b) >= 4; i++ {
		dst[i] = binary.LittleEndian.Uint32(b)
		b = b[4:]
	}
	return dst, nil
}

// over returns an error if a list has more elements than it may.
func over(n, most int) error {
	if n > most {
		return fmt.Errorf("a list has more than %d elements: send a shorter prompt", most)
	}
	return nil
}

// appendText, appendNumber, appendHash and appendInner append a field, unless it has its default value.
func appendText(dst []byte, id protowire.Number, v string) []byte {
	if v == "" {
		return dst
	}
	dst = protowire.AppendTag(dst, id, protowire.BytesType)
	return protowire.AppendString(dst, v)
}

func appendNumber[T ~uint8 | ~uint32 | ~uint64 | ~int](dst []byte, id protowire.Number, v T) []byte {
	if v == 0 {
		return dst
	}
	dst = protowire.AppendTag(dst, id, protowire.VarintType)
	return protowire.AppendVarint(dst, uint64(v))
}

func appendHash(dst []byte, id protowire.Number, v uint64) []byte {
	if v == 0 {
		return dst
	}
	dst = protowire.AppendTag(dst, id, protowire.Fixed64Type)
	return protowire.AppendFixed64(dst, v)
}

func appendInner(dst []byte, id protowire.Number, m encoder) []byte {
	// The length comes before the message. Nearly all inner messages are shorter than 128 bytes, so one byte is left for
	// it; a longer message is moved.
	dst = protowire.AppendTag(dst, id, protowire.BytesType)
	dst = append(dst, 0)
	began := len(dst)
	dst = m.appendTo(dst)
	n := len(dst) - began
	if n < 0x80 {
		dst[began-1] = byte(n)
		return dst
	}
	extra := protowire.SizeVarint(uint64(n)) - 1
	dst = append(dst, make([]byte, extra)...)
	copy(dst[began+extra:], dst[began:began+n])
	protowire.AppendVarint(dst[:began-1], uint64(n))
	return dst
}

// appendPacked appends a packed list of numbers, and appendPackedFixed one of hashes.
func appendPacked(dst []byte, id protowire.Number, list []uint32) []byte {
	if len(list) == 0 {
		return dst
	}
	size := 0
	for _, v := range list {
		size += protowire.SizeVarint(uint64(v))
	}
	dst = protowire.AppendTag(dst, id, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(size))
	for _, v := range list {
		dst = protowire.AppendVarint(dst, uint64(v))
	}
	return dst
}

func appendPackedFixed[T ~uint64](dst []byte, id protowire.Number, list []T) []byte {
	if len(list) == 0 {
		return dst
	}
	dst = protowire.AppendTag(dst, id, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(8*len(list)))
	for _, v := range list {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(v))
	}
	return dst
}
