package kvevent

import "fmt"

// Decoder reads payloads. A payload is the last frame of an engine's message. The decoder recognizes the formats of
// vLLM, SGLang, TensorRT-LLM's stream, LMCache and Mooncake event by event, so one stream may mix versions. The zero
// value is ready for use. Reuse a Decoder, because it remembers names. Only one goroutine may use a Decoder at a time.
type Decoder struct {
	// KeepRaw also fills Event.Digests and Event.ExtraKeys, to publish events again or to check an engine's hash seed.
	// It allocates for byte hashes.
	KeepRaw bool

	c     cursor
	rest  rest
	names interner
	after [len(kindNames)][numFields]field // by kind and field: the field that followed it in the last event
}

// rest is the part of a payload that has not been decoded into a batch yet.
type rest struct {
	payload []byte
	at      int // offset of the next event
	events  int // number of events
}

// A batch is full when one of these counts is reached. Skipped events count, too. [Decoder.Next] reads the remaining
// events. A message of one engine step is normally smaller. The exception is a very long prompt that evicts block by
// block: a million tokens are 62,500 removals.
const (
	fullEvents   = 1 << 12 // events, 1.2 MiB
	fullHashes   = 1 << 16 // hashes, 512 KiB
	fullTokens   = 1 << 18 // tokens, 1 MiB
	fullFeatures = 1 << 14 // multimodal items, 384 KiB
)

// An event with more hashes, tokens or items than these is skipped. Together with the constants above, they bound a
// batch to some 16 MiB. An event covers one step of one request, and the longest prompts that engines serve have one to
// two million tokens.
const (
	maxHashes   = 1 << 18 // two million tokens in blocks of eight
	maxTokens   = 1 << 21
	maxFeatures = 1 << 15 // multimodal items
)

const (
	maxRank = 1<<16 - 1 // largest data-parallel rank: a port is base + rank, so there cannot be more
	// maxBlockSize, in tokens, is the largest int of 32-bit platforms. The decoder lets larger blocks than
	// block.MaxSize through: the index refuses and counts them, and the holder's trust shows the loss.
	maxBlockSize = 1<<31 - 1
	maxGroup     = 1 << 16   // largest number of a cache group; models with the most groups have tens
	maxWindow    = 1<<31 - 1 // tokens, the largest int of 32-bit platforms
	maxOffset    = 1<<31 - 1 // tokens between the beginning of a block and the item that begins before or in the block
	maxCopies    = 1<<31 - 1 // copies of one block in one cache
	maxName      = 128       // bytes of the name of a tier's owner
	// smallestEvent is the size in bytes of ["BlockRemoved", []], the shortest event that is kept. It bounds the memory
	// that is reserved when a message states its number of events.
	smallestEvent = 15
	millisecond   = 1e11 // integer times above this are in milliseconds (Mooncake); read as seconds, this is the year 5138
)

// Decode resets b and reads one payload into it. An event with an unknown name or an unusable field is skipped and
// counted. If the payload is no batch, ends early, or has bytes after the batch, Decode rejects the whole payload. In
// that case the error names the position, b is empty, and the caller must treat the message as lost, because it may
// have removed blocks.
//
// If b.More is set, the payload has more events than fit into one batch. All its events are well-formed: apply b, then
// call [Decoder.Next]. Nearly all messages of engines fit. All batches of a payload together allocate at most 32 MiB.
// The payload may be reused after its last batch was read, unless KeepRaw is set.
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

// batch reads the envelope: [time, events, rank?, …]. A draft (vllm#42892) has a map with the same fields.
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
	for n = d.rest.events; n > 0 && d.c.skip(); n-- { // checks that the remaining events are well-formed
	}
	return true
}

// fill reads as many of the next n events as b has room for, and records where the rest begins.
func (d *Decoder) fill(b *Batch, n int) {
	b.Events = room(b.Events, min(n, d.c.left()/smallestEvent+1, fullEvents))
	for ; n > 0 && d.c.broken == "" && !b.full(); n-- {
		d.event(b)
	}
	d.rest.at, d.rest.events = d.c.i, n
}

// event reads one event. If its fields are not usable, the whole event is skipped.
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

// tagAt returns the name of the event at start, or "untagged". The event must be well-formed.
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
