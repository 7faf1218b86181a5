package kvevent

import (
	"fmt"
	"math"

	"github.com/warmpath/warmpath/block"
)

// TRTLLM reads the events that TensorRT-LLM hands out when asked (POST /kv_cache_events): JSON, each event once, with
// a number of its own. It remembers what the text leaves out: the number that comes next, the largest attention window
// and the size of a full block. The zero value reads rank 0; use one for each rank. One goroutine.
//
// Where numbers are missing or began anew, Cleared events stand for what is not known: the index forgets, and goes on
// with what follows.
type TRTLLM struct {
	// Rank is the attention data-parallel rank to read; events that name none belong to every rank.
	Rank int
	// BlockSize is the size of a full block in tokens. At 0 it is learned: the largest block seen so far. Smaller ones
	// are partial, which other requests can seldom use, and are passed over.
	BlockSize int

	Gaps     int // times that numbers were missing, also before the first
	Restarts int // times that numbers began anew

	c      jsonCursor
	names  interner
	seq    Sequence
	loose  bool // any rank, numbers unchecked
	window uint64
	full   int
}

// DecodeTRTLLM reads one answer to a poll by itself: events of any rank, their numbers unchecked.
func DecodeTRTLLM(json []byte, b *Batch) error {
	return (&TRTLLM{loose: true}).Decode(json, b)
}

// polled is where the parts of one event are.
type polled struct {
	id, window       uint64
	rank             int
	hasID, hasWindow bool
	hasRank          bool
	data             int // offset of the object; 0: none
}

// Decode reads the answer to one poll into b, which it resets first. What is no JSON array is rejected whole.
func (t *TRTLLM) Decode(json []byte, b *Batch) error {
	b.Reset()
	t.c = jsonCursor{p: json}
	c := &t.c
	problem := ""
	switch {
	case !t.widest(): // sees the whole text, so that what follows can only meet what is not usable
	case c.peek() != 0:
		problem = "bytes after the events"
	default:
		c.i = 0
		t.events(b)
	}
	if c.broken != "" {
		problem = c.broken
	}
	at := c.i
	c.p = nil
	if problem == "" {
		return nil
	}
	b.Reset()
	return fmt.Errorf("decode polled events: %s (byte %d of %d)", problem, at, len(json))
}

// widest finds the largest window that any event names: blocks of smaller ones do not prove a prefix.
func (t *TRTLLM) widest() bool {
	c := &t.c
	if !c.sign('[') {
		c.fail("polled events are an array")
		return false
	}
	for n := 0; c.next(n, ']'); n++ {
		if e, ok := t.envelope(); ok && e.hasWindow {
			t.window = max(t.window, e.window)
		}
	}
	return c.broken == ""
}

func (t *TRTLLM) events(b *Batch) {
	c := &t.c
	c.sign('[')
	for n := 0; c.next(n, ']'); n++ {
		c.peek()
		start := c.i
		e, ok := t.envelope()
		end := c.i
		if c.broken != "" {
			return
		}
		if !ok {
			b.skip("untagged", "a polled event is not usable", start)
			continue
		}
		t.event(b, e)
		c.i = end
	}
}

// envelope takes one element of the array and notes where its parts are.
func (t *TRTLLM) envelope() (e polled, ok bool) {
	c := &t.c
	if !c.sign('{') {
		c.skip()
		return e, false
	}
	for n := 0; c.next(n, '}'); n++ {
		key := c.key()
		read := false
		switch string(key) {
		case "event_id":
			e.id, read = c.size(math.MaxUint64)
			e.hasID = read
		case "window_size":
			e.window, read = c.size(maxWindow)
			e.hasWindow = read
		case "attention_dp_rank":
			var rank uint64
			rank, read = c.size(maxRank)
			e.rank, e.hasRank = int(rank), read
		case "data":
			if c.peek() == '{' {
				e.data = c.i
			}
		}
		if !read {
			c.skip()
		}
	}
	return e, e.data > 0 && c.broken == ""
}

func (t *TRTLLM) event(b *Batch, e polled) {
	if !t.loose && e.hasRank && e.rank != t.Rank {
		return
	}
	if e.hasRank {
		b.Rank, b.HasRank = e.rank, true
	}
	if e.hasID && !t.loose {
		t.follow(b, e.id)
	}
	if e.hasWindow && e.window < t.window {
		return
	}
	t.c.i = e.data
	tag, problem := t.data(b)
	if problem == "" {
		return
	}
	if string(tag) == "removed" || string(tag) == "updated" {
		b.Incomplete = true
	}
	b.skip(t.names.printable(tag), problem, e.data)
}

// follow compares an event's number with the last one.
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

// levelTier maps TensorRT-LLM's cache levels: 0 is the accelerator, 1 the host.
func levelTier(level uint64) block.Tier { return block.Tier(min(level, uint64(block.TierDisk))) }

func levelMedium(tier block.Tier) string {
	return [...]string{block.TierGPU: "GPU", block.TierCPU: "CPU", block.TierDisk: "DISK"}[tier]
}

// data takes the object that says what happened.
func (t *TRTLLM) data(b *Batch) (tag []byte, problem string) {
	c := &t.c
	var at struct{ parent, blocks, hashes, hash, level int }
	c.sign('{')
	for n := 0; c.next(n, '}'); n++ {
		key := c.key()
		c.peek()
		switch string(key) {
		case "type":
			if s, ok := c.text(); ok {
				tag = s
				continue
			}
		case "parent_hash":
			at.parent = c.i
		case "blocks":
			at.blocks = c.i
		case "block_hashes":
			at.hashes = c.i
		case "block_hash":
			at.hash = c.i
		case "cache_level":
			at.level = c.i
		}
		c.skip()
	}
	switch string(tag) {
	case "created": // sizes of the pools
		return tag, ""
	case "stored":
		return tag, t.stored(b, at.parent, at.blocks)
	case "removed":
		return tag, t.removed(b, at.hashes)
	case "updated":
		return tag, t.updated(b, at.hash, at.level)
	case "":
		return untagged, "a polled event without a type"
	}
	return tag, "a polled event of an unknown type"
}

func (t *TRTLLM) removed(b *Batch, hashes int) (problem string) {
	c := &t.c
	c.i = hashes
	if hashes == 0 || !c.sign('[') {
		return "block_hashes is no array"
	}
	start := len(b.hashes)
	for n := 0; c.next(n, ']'); n++ {
		h, _, ok := c.integer()
		if !ok {
			b.hashes = b.hashes[:start]
			return "a block hash is no integer"
		}
		b.hashes = append(b.hashes, h)
	}
	for tier := block.TierGPU; tier <= block.TierCPU; tier++ { // the event does not say where from
		e := b.add(Removed)
		e.Tier, e.Medium = tier, levelMedium(tier)
		e.Hashes = b.hashes[start:len(b.hashes):len(b.hashes)]
	}
	return ""
}

// updated turns a change of level into the block's arrival there and then its removal here, in this order so that
// its hash stays known. A change of priority alone is nothing to us.
func (t *TRTLLM) updated(b *Batch, hash, level int) (problem string) {
	c := &t.c
	c.i = level
	if level == 0 || c.word("null") {
		return ""
	}
	if !c.sign('{') {
		return "cache_level is no difference"
	}
	var was, is uint64
	wasKnown, isKnown := false, false
	for n := 0; c.next(n, '}'); n++ {
		key := c.key()
		read := false
		switch string(key) {
		case "new_value":
			is, read = c.size(maxRank)
			isKnown = read
		case "old_value":
			was, read = c.size(maxRank)
			wasKnown = read
		}
		if !read {
			c.skip()
		}
	}
	if !wasKnown || !isKnown {
		return "cache_level has no old and new value"
	}
	c.i = hash
	h, _, ok := c.integer()
	if hash == 0 || !ok {
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
