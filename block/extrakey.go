package block

import (
	"encoding/binary"
	"fmt"
)

// ExtraKey is data besides tokens that vLLM includes in a block's hash: a LoRA adapter, a multimodal item, a salt, or
// the hash of prompt embeddings. [TextKey], [PlacedKey] and [TupleKey] make an ExtraKey.
type ExtraKey struct {
	atoms []atom // one atom, or the elements of a tuple
	tuple bool
}

// atom is a single Python value in an extra key: a string, a number or bytes.
type atom struct {
	kind   atomKind
	text   string // the string, or the bytes if the kind is atomBytes
	number int64
}

type atomKind uint8

const (
	atomText atomKind = iota
	atomNumber
	atomBytes
)

// TextKey returns a key that is a string: a LoRA name, a salt, or a multimodal identifier of vLLM before March 2026.
func TextKey(s string) ExtraKey { return ExtraKey{atoms: []atom{{kind: atomText, text: s}}} }

// PlacedKey returns a key that is a pair: the identifier of a multimodal item, and the position of the item's first
// token relative to the block. The position is negative if this token is in an earlier block.
func PlacedKey(id string, offset int) ExtraKey {
	return ExtraKey{tuple: true, atoms: []atom{{kind: atomText, text: id}, {kind: atomNumber, number: int64(offset)}}}
}

// TupleKey returns a key that is a tuple of strings, such as ("lora", name, path) and ("cache_salt", salt) of vLLM
// 0.32.
func TupleKey(parts ...string) ExtraKey {
	k := ExtraKey{tuple: true, atoms: make([]atom, len(parts))}
	for i, p := range parts {
		k.atoms[i].text = p
	}
	return k
}

// text returns the key's identifier, the only part of the key that llm-d includes in its hashes.
func (k ExtraKey) text() string {
	if len(k.atoms) == 0 {
		return ""
	}
	if a := k.atoms[0]; a.kind == atomNumber {
		return fmt.Sprint(a.number)
	}
	return k.atoms[0].text
}

// Major types and values of canonical CBOR (RFC 8949 §4.2.1), as far as block hashes need them.
const (
	cborUnsigned = 0 << 5
	cborNegative = 1 << 5
	cborBytes    = 2 << 5
	cborString   = 3 << 5
	cborArray    = 4 << 5
	cborMap      = 5 << 5
	cborNull     = 0xf6
)

// cborHead writes a major type and its argument n, in the shortest form.
func cborHead(b []byte, major byte, n uint64) []byte {
	switch {
	case n < 24:
		return append(b, major|byte(n))
	case n < 1<<8:
		return append(b, major|24, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, major|25), uint16(n))
	case n < 1<<32:
		return binary.BigEndian.AppendUint32(append(b, major|26), uint32(n))
	default:
		return binary.BigEndian.AppendUint64(append(b, major|27), n)
	}
}

func cborText(b []byte, s string) []byte {
	return append(cborHead(b, cborString, uint64(len(s))), s...)
}

func cborTokens(b []byte, tokens []Token) []byte {
	b = cborHead(b, cborArray, uint64(len(tokens)))
	for _, t := range tokens {
		b = cborHead(b, cborUnsigned, uint64(t))
	}
	return b
}

// cborExtra writes extra keys as vLLM does: null for none, tuples as arrays.
func cborExtra(b []byte, extra []ExtraKey) []byte {
	if len(extra) == 0 {
		return append(b, cborNull)
	}
	b = cborHead(b, cborArray, uint64(len(extra)))
	for _, k := range extra {
		if k.tuple {
			b = cborHead(b, cborArray, uint64(len(k.atoms)))
		}
		for _, a := range k.atoms {
			b = a.cbor(b)
		}
	}
	return b
}

func (a atom) cbor(b []byte) []byte {
	switch {
	case a.kind == atomText:
		return cborText(b, a.text)
	case a.kind == atomBytes:
		return append(cborHead(b, cborBytes, uint64(len(a.text))), a.text...)
	case a.number < 0:
		return cborHead(b, cborNegative, uint64(-1-a.number))
	default:
		return cborHead(b, cborUnsigned, uint64(a.number))
	}
}

// cborLLMDExtra writes extra keys as llm-d does: null for none, otherwise an array of maps {"Hash": identifier}.
func cborLLMDExtra(b []byte, extra []ExtraKey) []byte {
	if len(extra) == 0 {
		return append(b, cborNull)
	}
	b = cborHead(b, cborArray, uint64(len(extra)))
	for _, k := range extra {
		b = cborText(cborText(cborHead(b, cborMap, 1), "Hash"), k.text())
	}
	return b
}

// Opcodes of Pickle protocol 5, as far as CPython's C pickler uses them for a string, or for a block's tuple: the
// parent's hash as bytes, a tuple of token ids, and a tuple of extra keys or None.
//
// If an object occurs a second time, CPython writes a reference to the object. This code writes the object again. The
// results differ only if a block has two equal multimodal identifiers that are the same object in Python.
const (
	pickleMemoize    = 0x94
	pickleMark       = 0x28
	pickleTuple      = 0x74
	pickleTuple1     = 0x85 // a tuple of one element; 0x86 and 0x87 are tuples of two and three elements
	pickleEmptyTuple = 0x29
	pickleNone       = 0x4e
	pickleStop       = 0x2e
	pickleHeadBytes  = 2 + 1 + 8 // 2 bytes for the protocol, 1 for the opcode of a frame, 8 for the frame's length
)

// pickleStart begins a pickle: the protocol, and a frame whose length pickleEnd sets.
func pickleStart(b []byte) []byte {
	return append(b, 0x80, 5, 0x95, 0, 0, 0, 0, 0, 0, 0, 0)
}

// pickleEnd ends the pickle that begins at b[start:], and writes the length of its frame.
func pickleEnd(b []byte, start int) []byte {
	b = append(b, pickleStop)
	binary.LittleEndian.PutUint64(b[start+3:], uint64(len(b)-start-pickleHeadBytes))
	return b
}

func pickleText(b []byte, s string) []byte {
	start := len(b)
	return pickleEnd(pickleString(pickleStart(b), s), start)
}

func pickleBlock(b, parent []byte, tokens []Token, extra []ExtraKey) []byte {
	start := len(b)
	b = pickleBytes(pickleStart(b), string(parent))
	b = pickleTupleHead(b, len(tokens))
	for _, t := range tokens {
		b = pickleInt(b, int64(t))
	}
	b = pickleTupleEnd(b, len(tokens))
	if len(extra) == 0 {
		b = append(b, pickleNone)
	} else {
		b = pickleTupleHead(b, len(extra))
		for _, k := range extra {
			b = k.pickle(b)
		}
		b = pickleTupleEnd(b, len(extra))
	}
	return pickleEnd(pickleTupleEnd(b, 3), start)
}

func (k ExtraKey) pickle(b []byte) []byte {
	if k.tuple {
		b = pickleTupleHead(b, len(k.atoms))
	}
	for _, a := range k.atoms {
		switch a.kind {
		case atomText:
			b = pickleString(b, a.text)
		case atomBytes:
			b = pickleBytes(b, a.text)
		case atomNumber:
			b = pickleInt(b, a.number)
		}
	}
	if k.tuple {
		b = pickleTupleEnd(b, len(k.atoms))
	}
	return b
}

func pickleTupleHead(b []byte, n int) []byte {
	if n > 3 {
		return append(b, pickleMark)
	}
	return b
}

func pickleTupleEnd(b []byte, n int) []byte {
	switch {
	case n == 0:
		return append(b, pickleEmptyTuple)
	case n <= 3:
		return append(b, pickleTuple1+byte(n-1), pickleMemoize)
	default:
		return append(b, pickleTuple, pickleMemoize)
	}
}

func pickleString(b []byte, s string) []byte {
	if len(s) < 1<<8 {
		b = append(b, 0x8c, byte(len(s)))
	} else {
		b = binary.LittleEndian.AppendUint32(append(b, 0x58), uint32(len(s)))
	}
	return append(append(b, s...), pickleMemoize)
}

func pickleBytes(b []byte, s string) []byte {
	if len(s) < 1<<8 {
		b = append(b, 0x43, byte(len(s)))
	} else {
		b = binary.LittleEndian.AppendUint32(append(b, 0x42), uint32(len(s)))
	}
	return append(append(b, s...), pickleMemoize)
}

// pickleInt writes v with the first of these opcodes that can express it: BININT1, BININT2, BININT, LONG1.
func pickleInt(b []byte, v int64) []byte {
	switch {
	case v >= 0 && v < 1<<8:
		return append(b, 0x4b, byte(v))
	case v >= 0 && v < 1<<16:
		return binary.LittleEndian.AppendUint16(append(b, 0x4d), uint16(v))
	case v == int64(int32(v)):
		return binary.LittleEndian.AppendUint32(append(b, 0x4a), uint32(v))
	}
	n := 8
	for n > 1 && v == v<<(8*(9-n))>>(8*(9-n)) {
		n--
	}
	b = append(b, 0x8a, byte(n))
	for i := range n {
		b = append(b, byte(v>>(8*i)))
	}
	return b
}
