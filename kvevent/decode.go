package kvevent

import "fmt"

// Decoder reads payloads. A payload is the last frame of an engine's message. The decoder recognizes the format of each
// event separately, so one stream may mix formats and versions. The zero value is ready for use. Use one Decoder for
// many payloads, because it keeps the names that it has read. Only one goroutine may use a Decoder at a time.
type Decoder struct {
	// KeepRaw also fills Event.Digests, Event.ExtraKeys and Event.Session. They are needed to publish events again, or to
	// check an engine's hash seed. With KeepRaw, byte hashes cost allocations.
	KeepRaw bool

	c     cursor
	rest  rest
	names interner
	// after[k][f] is the field that came after field f when f was last read in an event of kind k in map form.
	after [len(kindNames)][numFields]field
}

// rest is the part of a payload that has not been decoded into a batch yet.
type rest struct {
	payload []byte
	at      int // offset of the next event
	events  int // number of events
}

// A batch is full when one of these counts is reached; skipped events count, too. [Decoder.Next] reads the remaining
// events of the payload. The message of one engine step normally fits into one batch. The exception is a very long
// prompt for which the engine evicts block by block: a million tokens in blocks of 16 need 62,500 removals.
const (
	fullEvents   = 1 << 12 // events, 1.2 MiB
	fullHashes   = 1 << 16 // hashes, 512 KiB
	fullTokens   = 1 << 18 // tokens, 1 MiB
	fullFeatures = 1 << 14 // multimodal items, 384 KiB
)

// These constants bound one event. An event with more hashes or tokens is skipped. If an event has more multimodal
// items, Event.Unread has KeyFeature. Together with the constants above, these constants bound a batch to some 16 MiB.
// An event covers one step of one request, and the longest prompts that engines serve have one to two million tokens.
const (
	maxHashes   = 1 << 18 // enough for two million tokens in blocks of eight
	maxTokens   = 1 << 21
	maxFeatures = 1 << 15 // multimodal items of one event
)

const (
	// maxRank is the largest data-parallel rank. The port of a rank is a base port plus the rank, and ports end at 65,535.
	maxRank = 1<<16 - 1
	// maxBlockSize, in tokens, is the largest int of 32-bit platforms. It is larger than block.MaxSize, so that too large
	// blocks reach the index: the index refuses and counts them, and the loss becomes visible in the trust of the holder.
	maxBlockSize = 1<<31 - 1
	maxGroup     = 1 << 16   // largest number of a cache group; no known model has more than tens of groups
	maxWindow    = 1<<31 - 1 // tokens, the largest int of 32-bit platforms
	// maxOffset bounds the distance in tokens between the beginning of a block and the beginning of an item, which may lie
	// before the block or in it. It is the largest int of 32-bit platforms.
	maxOffset = 1<<31 - 1
	maxCopies = 1<<31 - 1 // copies of one block in one cache
	maxName   = 128       // bytes of Event.Owner
	// smallestEvent is the size in bytes of ["BlockRemoved", []], the shortest event that is not skipped. When a message
	// states its number of events, smallestEvent bounds the memory that is reserved for them.
	smallestEvent = 15
	// A time that is an integer above the constant millisecond is in milliseconds (Mooncake). As a number of seconds, the
	// constant would be in the year 5138.
	millisecond = 1e11
)

// Decode resets b and reads one payload into b. An event with an unknown name or an unusable field is skipped and
// counted. Decode rejects a payload that is no batch, ends early, or has bytes after the batch. In that case the error
// names the position, and b is empty. The caller must then treat the message as lost: it may have removed blocks.
//
// If b.More is set, the payload has more events than fit into one batch, and all of them are well-formed: apply b, then
// call [Decoder.Next]. Nearly all messages of engines fit into one batch. All batches of a payload together allocate at
// most 32 MiB, plus the bytes of strings of more than 512 bytes. The caller may reuse the payload's memory after the
// last batch, unless KeepRaw is set.
func (d *Decoder) Decode(payload []byte, b *Batch) error {
	b.Reset()
	d.c, d.rest = cursor{p: payload}, rest{}
	problem := d.batch(b)
	if problem == "" && d.c.left() > 0 {
		problem = "bytes after the batch"
	}
	if d.c.broken != "" {
		problem = d.c.broken
	}
	if problem == "" {
		d.c.p = nil
		if b.More = d.rest.events > 0; b.More {
			d.rest.payload = payload
		}
		return nil
	}
	at, events := d.c.i, len(b.Events)+b.Skipped
	d.c.p, d.rest = nil, rest{}
	b.Reset()
	return fmt.Errorf("decode events: %s (byte %d of %d, after %d events)", problem, at, len(payload), events)
}

// Next reads the next events of the last payload into b, and overwrites the events in b. b must be the batch of the
// last Decode. Next returns false when there are no more events.
func (d *Decoder) Next(b *Batch) bool {
	if !b.More {
		return false
	}
	b.Events, b.hashes, b.tokens, b.features = b.Events[:0], b.hashes[:0], b.tokens[:0], b.features[:0]
	b.Skipped, b.SkippedTags, b.Problem, b.ProblemAt, b.Incomplete = 0, b.SkippedTags[:0], "", 0, false
	d.c = cursor{p: d.rest.payload, i: d.rest.at}
	d.fill(b, d.rest.events)
	if d.c.broken != "" { // cannot happen: Decode has checked these events
		b.Incomplete, d.rest.events = true, 0
	}
	d.c.p = nil
	if b.More = d.rest.events > 0; !b.More {
		d.rest = rest{}
	}
	return true
}

// batch reads the envelope, which is an array [time, events, rank?, …]. In a draft of vLLM (vllm#42892) the envelope is
// a map with the same fields.
func (d *Decoder) batch(b *Batch) (problem string) {
	c := &d.c
	if n, ok := c.object(); ok {
		return d.namedBatch(b, n)
	}
	n, ok := c.array()
	if !ok {
		return "a batch is an array"
	}
	if n < 2 {
		return "a batch has a time and events"
	}
	if !d.time(b) {
		return "the batch's time is no number"
	}
	if !d.events(b) {
		return "the batch's events are no array"
	}
	if n > 2 && !d.rank(b) {
		return "the batch's data-parallel rank is none"
	}
	for i := 3; i < n; i++ {
		c.skip()
	}
	return ""
}

func (d *Decoder) namedBatch(b *Batch, n int) (problem string) {
	c := &d.c
	events := false
	for ; n > 0 && c.broken == ""; n-- {
		key, ok := c.text()
		if !ok {
			return "a key of the batch is no string"
		}
		switch string(key) {
		case "ts":
			if !d.time(b) {
				return "the batch's time is no number"
			}
		case "events":
			if events {
				return "the batch has events twice"
			}
			if events = d.events(b); !events {
				return "the batch's events are no array"
			}
		case "data_parallel_rank":
			if !d.rank(b) {
				return "the batch's data-parallel rank is none"
			}
		default:
			c.skip()
		}
	}
	if !events {
		return "the batch has no events"
	}
	return ""
}

func (d *Decoder) time(b *Batch) bool {
	if d.c.null() {
		return true
	}
	t, integer, ok := d.c.number()
	if integer && t > millisecond {
		t /= 1000
	}
	b.Time = t
	return ok
}

func (d *Decoder) rank(b *Batch) bool {
	if d.c.null() {
		return true
	}
	var ok bool
	b.Rank, ok = d.c.size(maxRank)
	b.HasRank = ok
	return ok
}

func (d *Decoder) events(b *Batch) bool {
	n, ok := d.c.array()
	if !ok {
		return false
	}
	d.fill(b, n)
	for n = d.rest.events; n > 0 && d.c.skip(); n-- { // this loop checks that the remaining events are well-formed
	}
	return true
}

// fill reads the next n events, as many of them as fit into b, and records in d.rest where the others begin.
func (d *Decoder) fill(b *Batch, n int) {
	b.Events = room(b.Events, min(n, d.c.left()/smallestEvent+1, fullEvents))
	for ; n > 0 && d.c.broken == "" && !b.full(); n-- {
		d.event(b)
	}
	d.rest.at, d.rest.events = d.c.i, n
}

// event reads one event. If a field of the event is not usable, the whole event is skipped.
func (d *Decoder) event(b *Batch) {
	c := &d.c
	start, events := c.i, len(b.Events)
	var r reading
	e := b.add(Stored)
	problem := d.read(b, e, &r)
	if problem == "" || c.broken != "" {
		return
	}
	at := c.i
	b.Events = b.Events[:events]
	c.i = start
	if !c.skip() {
		return
	}
	end := c.i
	tag := d.tagAt(start)
	c.i = end
	if (string(tag) == tagRemoved || string(tag) == tagCleared) && !r.has(fieldMooncake) {
		b.Incomplete = true
	}
	b.skip(d.names.printable(tag), problem, at)
}

// tagAt returns the name of the event that begins at offset start, or "untagged" if the event has no name. The event
// must be well-formed.
func (d *Decoder) tagAt(start int) []byte {
	c := &d.c
	c.i = start
	if n, ok := c.array(); ok {
		if n > 0 {
			if tag, ok := c.text(); ok {
				return tag
			}
		}
		return untagged
	}
	n, ok := c.object()
	for ; ok && n > 0; n-- {
		key, isText := c.text()
		if !isText {
			c.skip()
		}
		if string(key) == "type" {
			if tag, ok := c.text(); ok {
				return tag
			}
			return untagged
		}
		c.skip()
	}
	return untagged
}

var untagged = []byte("untagged")

const (
	tagStored  = "BlockStored"
	tagRemoved = "BlockRemoved"
	tagCleared = "AllBlocksCleared"
)
