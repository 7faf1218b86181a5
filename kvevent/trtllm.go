package kvevent

import (
	"fmt"
	"math"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/jsonscan"
)

// TRTLLM reads the events that TensorRT-LLM returns to a poll (POST /kv_cache_events): JSON, each event once and with a
// number. It remembers the expected number, the largest attention window and the size of a full block. The zero value
// reads rank 0; use a TRTLLM for each rank. For one goroutine.
//
// When numbers are missing or begin anew, Decode adds Cleared events before the next event: the index then forgets the
// holder's blocks and continues.
type TRTLLM struct {
	// Rank is the attention data-parallel rank to read. Events without a rank belong to every rank.
	Rank int
	// BlockSize is the size of a full block in tokens. At 0 it is learned: the largest block so far. Smaller blocks are
	// partial and are ignored, because other requests can seldom use them.
	BlockSize int

	Gaps     int // times that numbers were missing, also before the first
	Restarts int // times that numbers began anew

	names  interner
	seq    Sequence
	loose  bool // read every rank, and do not check numbers
	window uint64
	full   int
}

// DecodeTRTLLM reads the answer to a single poll: events of every rank, without a check of their numbers.
func DecodeTRTLLM(json []byte, b *Batch) error {
	return (&TRTLLM{loose: true}).Decode(json, b)
}

// Decode reads the answer to one poll into b, which it resets first. It rejects text that is not a JSON array as a
// whole.
func (t *TRTLLM) Decode(json []byte, b *Batch) error {
	b.Reset()
	s := jsonscan.New(json, maxDepth)
	for more := s.Open('['); more; more = s.Next(']') {
		// Blocks of a smaller window than the largest do not prove a prefix.
		if p, ok := readPolled(&s); ok && p.hasWindow {
			t.window = max(t.window, p.window)
		}
	}
	if !s.End() {
		s.Fail("bytes after the events")
	}
	if err := s.Err(); err != nil {
		return fmt.Errorf("decode %d bytes of polled events: %w", len(json), err)
	}
	s = jsonscan.New(json, maxDepth)
	for more := s.Open('['); more; more = s.Next(']') {
		s.Peek()
		start := s.Pos()
		if p, ok := readPolled(&s); ok {
			t.event(b, p)
		} else {
			b.skip("untagged", "a polled event is not usable", start)
		}
	}
	return nil
}

// polled is one event with its envelope.
type polled struct {
	id, window       uint64
	rank             int
	hasID, hasWindow bool
	hasRank          bool
	data             []byte // an object
	dataAt           int    // its offset in the text
}

// readPolled reads one element of the array.
func readPolled(s *jsonscan.Scanner) (p polled, ok bool) {
	if s.Peek() != '{' {
		s.Skip()
		return p, false
	}
	for more := s.Open('{'); more; more = s.Next('}') {
		key, _ := s.Key()
		at := s.Pos()
		value := s.Raw()
		switch string(key) {
		case "event_id":
			p.id, p.hasID = jsonSize(value, math.MaxUint64)
		case "window_size":
			p.window, p.hasWindow = jsonSize(value, maxWindow)
		case "attention_dp_rank":
			var rank uint64
			rank, p.hasRank = jsonSize(value, maxRank)
			p.rank = int(rank)
		case "data":
			if isObject(value) {
				p.data, p.dataAt = value, at
			}
		}
	}
	return p, p.data != nil && s.Err() == nil
}

func (t *TRTLLM) event(b *Batch, p polled) {
	if !t.loose && p.hasRank && p.rank != t.Rank {
		return
	}
	if p.hasRank {
		b.Rank, b.HasRank = p.rank, true
	}
	if p.hasID && !t.loose {
		t.follow(b, p.id)
	}
	if p.hasWindow && p.window < t.window {
		return
	}
	tag, problem := t.data(b, p.data)
	if problem == "" {
		return
	}
	if string(tag) == "removed" || string(tag) == "updated" {
		b.Incomplete = true
	}
	b.skip(t.names.printable(tag), problem, p.dataAt)
}

// follow compares an event's number with the expected one.
func (t *TRTLLM) follow(b *Batch, id uint64) {
	step := t.seq.Next(id)
	if step == InOrder {
		return
	}
	if step == Behind {
		t.Restarts++
		t.seq.Reset()
		step = t.seq.Next(id)
	} else {
		t.Gaps++
	}
	if step == Gap {
		t.seq.Jump(id)
		t.seq.Next(id)
	}
	for tier := block.TierGPU; tier <= block.TierDisk; tier++ {
		e := b.add(Cleared)
		e.Tier, e.Medium = tier, levelMedium(tier)
	}
}

// levelTier returns the tier of a cache level: 0 is the accelerator, 1 the host.
func levelTier(level uint64) block.Tier { return block.Tier(min(level, uint64(block.TierDisk))) }

func levelMedium(tier block.Tier) string {
	return [...]string{block.TierGPU: "GPU", block.TierCPU: "CPU", block.TierDisk: "DISK"}[tier]
}

// data reads the object that says what happened.
func (t *TRTLLM) data(b *Batch, data []byte) (tag []byte, problem string) {
	var parent, blocks, hashes, hash, level []byte
	for key, value := range jsonscan.Members(data) {
		switch string(key) {
		case "type":
			if value[0] == '"' {
				tag = value[1 : len(value)-1]
			}
		case "parent_hash":
			parent = value
		case "blocks":
			blocks = value
		case "block_hashes":
			hashes = value
		case "block_hash":
			hash = value
		case "cache_level":
			level = value
		}
	}
	switch string(tag) {
	case "created": // sizes of the pools
		return tag, ""
	case "stored":
		return tag, t.stored(b, parent, blocks)
	case "removed":
		return tag, t.removed(b, hashes)
	case "updated":
		return tag, t.updated(b, hash, level)
	case "":
		return untagged, "a polled event without a type"
	}
	return tag, "a polled event of an unknown type"
}

func (t *TRTLLM) removed(b *Batch, hashes []byte) (problem string) {
	if !isArray(hashes) {
		return "block_hashes is no array"
	}
	start := len(b.hashes)
	for _, value := range jsonscan.Items(hashes) {
		h, _, ok := jsonInteger(value)
		if !ok {
			b.hashes = b.hashes[:start]
			return "a block hash is no integer"
		}
		b.hashes = append(b.hashes, h)
	}
	for tier := block.TierGPU; tier <= block.TierCPU; tier++ { // the event does not name the tier
		e := b.add(Removed)
		e.Tier, e.Medium = tier, levelMedium(tier)
		e.Hashes = b.hashes[start:len(b.hashes):len(b.hashes)]
	}
	return ""
}

// updated turns a change of a block's level into a stored event for the new level and then a removed event for the old
// one. In this order the index keeps the block's hash. A change of priority alone is ignored.
func (t *TRTLLM) updated(b *Batch, hash, level []byte) (problem string) {
	if level == nil || isNull(level) {
		return ""
	}
	if !isObject(level) {
		return "cache_level is no difference"
	}
	var was, is uint64
	wasKnown, isKnown := false, false
	for key, value := range jsonscan.Members(level) {
		switch string(key) {
		case "new_value":
			is, isKnown = jsonSize(value, maxRank)
		case "old_value":
			was, wasKnown = jsonSize(value, maxRank)
		}
	}
	if !wasKnown || !isKnown {
		return "cache_level has no old and new value"
	}
	h, _, ok := jsonInteger(hash)
	if !ok {
		return "block_hash is no integer"
	}
	b.hashes = append(b.hashes, h)
	one := b.hashes[len(b.hashes)-1 : len(b.hashes) : len(b.hashes)]
	arrival := b.add(Stored)
	arrival.Tier, arrival.Medium, arrival.Hashes = levelTier(is), levelMedium(levelTier(is)), one
	arrival.Hidden = KeyLoRA | KeySalt
	departure := b.add(Removed)
	departure.Tier, departure.Medium, departure.Hashes = levelTier(was), levelMedium(levelTier(was)), one
	return ""
}
