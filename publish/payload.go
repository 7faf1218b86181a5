package publish

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/warmpath/warmpath/kvevent"
)

// encoder writes batches. It keeps its memory between batches.
type encoder struct {
	batch   kvevent.Batch
	payload []byte
	keys    []byte   // extra keys of all events of the batch
	digests [][]byte // hashes and parents of all events of the batch
	hashes  []Hash   // stand for the digests: kvevent counts the blocks by Event.Hashes
}

// wires has the wire for each form of hashes.
var wires = func() (w [3]kvevent.Wire) {
	for f, name := range [...]string{formUnknown: "vllm-0.33", formNumbers: "vllm-0.33", formDigests: "vllm-0.33+bytes"} {
		wire, err := kvevent.ParseWire(name)
		if err != nil {
			panic("bug: " + err.Error())
		}
		w[f] = wire
	}
	return w
}()

// Append appends one batch to dst, as the payload of a message, and returns the longer slice. It is for callers that
// send messages by other means than a KVPublisher. at is the time of the batch in Unix seconds. rank is the
// data-parallel rank. size is the block size of events without a block size of their own; 0: each event has one.
func Append(dst []byte, at float64, rank, size int, events ...Event) ([]byte, error) {
	var e encoder
	payload, err := e.encode(at, rank, size, events)
	if err != nil {
		return dst, err
	}
	return append(dst, payload...), nil
}

// encode returns the payload of a batch. The payload is valid until the next call.
func (c *encoder) encode(at float64, rank, size int, events []Event) ([]byte, error) {
	if len(events) == 0 {
		return nil, invalid("a batch without events")
	}
	f := formUnknown
	for i := range events {
		e, own := &events[i], size
		if e.Stored != nil {
			own = cmp.Or(e.Stored.BlockSize, size)
		}
		var err error
		if f, err = e.check(own, f); err != nil {
			return nil, fmt.Errorf("event %d: %w", i, err)
		}
	}
	c.batch.Time, c.batch.Rank, c.batch.HasRank = at, rank, true
	c.batch.Events, c.keys, c.digests, c.hashes = c.batch.Events[:0], c.keys[:0], c.digests[:0], c.hashes[:0]
	for i := range events {
		c.add(&events[i], size)
	}
	c.payload = wires[f].Append(c.payload[:0], &c.batch)
	if n := len(c.payload); n > maxPayload {
		c.payload = nil
		return nil, fmt.Errorf("%w: it has %d bytes, %d are allowed", ErrTooLarge, n, maxPayload)
	}
	return c.payload, nil
}

// add appends an event to the batch.
func (c *encoder) add(e *Event, size int) {
	out := kvevent.Event{Kind: kvevent.Cleared, Group: -1}
	switch {
	case e.Removed != nil:
		r := e.Removed
		out.Kind, out.Medium = kvevent.Removed, cmp.Or(r.Medium, "GPU")
		out.Hashes, out.Digests = c.hash(r.BlockHashes, r.BlockDigests, nil)
		if r.Group != nil {
			out.Group = *r.Group
		}
	case e.Stored != nil:
		s := e.Stored
		out.Kind, out.Medium = kvevent.Stored, cmp.Or(s.Medium, "GPU")
		out.Hashes, out.Digests = c.hash(s.BlockHashes, s.BlockDigests, s.ParentDigest)
		out.Parent, out.HasParent = s.ParentHash, s.HasParent || s.ParentDigest != nil
		out.Tokens, out.BlockSize = s.TokenIDs, cmp.Or(s.BlockSize, size)
		out.LoRA, out.Spec, out.Window = s.LoRAName, s.Kind, s.Window
		if s.LoRAID != nil {
			out.LoRAID, out.HasLoRAID = *s.LoRAID, true
		}
		if s.Group != nil {
			out.Group = *s.Group
		}
		out.ExtraKeys = c.extraKeys(s, len(out.Hashes), out.BlockSize)
		out.NoExtraKeys = out.ExtraKeys == nil
	}
	c.batch.Events = append(c.batch.Events, out)
}

// hash returns the hashes of an event and, if they are byte strings, the strings with the parent as the last one.
func (c *encoder) hash(hashes []Hash, digests [][]byte, parent []byte) ([]Hash, [][]byte) {
	if len(digests) == 0 && parent == nil {
		return hashes, nil
	}
	first := len(c.digests)
	c.digests = append(c.digests, digests...)
	if parent != nil {
		c.digests = append(c.digests, parent)
	}
	for len(c.hashes) < len(digests) {
		c.hashes = append(c.hashes, 0)
	}
	return c.hashes[:len(digests):len(digests)], c.digests[first:len(c.digests):len(c.digests)]
}

// extraKeys returns the field extra_keys of an event of n blocks as vLLM writes it: for each block null or a list of
// the adapter's name, items, the salt of a prompt's first block, and digests of embeddings. The result is nil if the
// event does not have the field: then its hashes do not show which tokens their blocks have.
func (c *encoder) extraKeys(s *Stored, n, size int) []byte {
	aligned := len(s.TokenIDs) > 0 && len(s.TokenIDs) == n*size
	if !aligned && s.ExtraKeys == nil {
		return nil
	}
	first := len(c.keys)
	b := arrayHead(c.keys, n)
	root := aligned && !s.HasParent && s.ParentDigest == nil
	for i := range n {
		var keys []ExtraKey
		if s.ExtraKeys != nil {
			keys = s.ExtraKeys[i]
		}
		salted := i == 0 && root && s.CacheSalt != ""
		count := len(keys)
		if s.LoRAName != "" {
			count++
		}
		if salted {
			count++
		}
		if count == 0 {
			b = append(b, 0xc0)
			continue
		}
		b = arrayHead(b, count)
		if s.LoRAName != "" {
			b = text(b, s.LoRAName)
		}
		for _, k := range keys {
			if k.digest == nil {
				b = integer(text(append(b, 0x92), k.id), k.offset)
			}
		}
		if salted {
			b = text(b, s.CacheSalt)
		}
		for _, k := range keys {
			if k.digest != nil {
				b = append(append(b, 0xc4, byte(len(k.digest))), k.digest...)
			}
		}
	}
	c.keys = b
	return b[first:len(b):len(b)]
}

// arrayHead, text and integer write MessagePack in its shortest form, as package kvevent does.
func arrayHead(b []byte, n int) []byte {
	switch {
	case n < 16:
		return append(b, 0x90|byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, 0xdc), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, 0xdd), uint32(n))
}

func text(b []byte, s string) []byte {
	switch n := len(s); {
	case n < 32:
		b = append(b, 0xa0|byte(n))
	case n <= math.MaxUint8:
		b = append(b, 0xd9, byte(n))
	default:
		b = binary.BigEndian.AppendUint16(append(b, 0xda), uint16(n)) // maxText is below 64 KiB
	}
	return append(b, s...)
}

func integer(b []byte, n int) []byte {
	switch {
	case n >= -32 && n < 0x80:
		return append(b, byte(n))
	case n >= 0 && n <= math.MaxUint8:
		return append(b, 0xcc, byte(n))
	case n >= 0 && n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(n))
	case n >= 0:
		return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(n)) // maxInt32 bounds n
	case n >= math.MinInt8:
		return append(b, 0xd0, byte(n))
	case n >= math.MinInt16:
		return binary.BigEndian.AppendUint16(append(b, 0xd1), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, 0xd2), uint32(n))
}
