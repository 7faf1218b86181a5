package kvevent

import "fmt"

// Decoder reads payloads: the last frame of an engine's message. It tells vLLM, SGLang, TensorRT-LLM's stream, LMCache
// and Mooncake apart by shape, event by event, so versions may be mixed in one stream. The zero value is ready; reuse
// it, for it remembers names. One goroutine.
type Decoder struct {
	// KeepRaw also fills Event.Digests and Event.ExtraKeys, for whoever publishes again or checks an engine's hash
	// seed. It costs allocations for byte hashes.
	KeepRaw bool

	c     cursor
	rest  rest
	names interner
	after [len(kindNames)][numFields]field // what came after a field the last time, in events of a kind
}

// rest are the events of a payload that no batch had yet.
type rest struct {
	payload []byte
	at      int // where they begin
	events  int
}

// A batch is full when one of these counts is reached; skipped events count. [Decoder.Next] reads the remaining events.
// What engines send in a step stays below, except when a very long prompt evicts block by block: a million tokens are
// 62,500 removals.
const (
	fullEvents   = 1 << 12 // 1.2 MiB
	fullHashes   = 1 << 16 // 512 KiB
	fullTokens   = 1 << 18 // 1 MiB
	fullFeatures = 1 << 14 // 384 KiB
)

// An event with more than that is skipped. Together with the constants above they bound a batch to some 16 MiB. An
// event is about one step of one request, and the longest prompts that engines serve have one to two million tokens.
const (
	maxHashes   = 1 << 18 // two million tokens in blocks of eight
	maxTokens   = 1 << 21
	maxFeatures = 1 << 15 // multimodal items
)

const (
	maxRank = 1<<16 - 1 // data-parallel ranks; a port is base + rank, so there cannot be more
	// maxBlockSize, in tokens, is the largest that every platform's int holds. The index refuses blocks beyond
	// block.MaxSize: it counts them for the holder, and the holder's trust then shows the loss.
	maxBlockSize = 1<<31 - 1
	maxGroup     = 1 << 16   // cache groups of a model; the largest seen have tens
	maxWindow    = 1<<31 - 1 // tokens, the largest that every platform's int holds
	maxOffset    = 1<<31 - 1 // tokens between a block and the item that begins before or in it
	maxCopies    = 1<<31 - 1 // of one block in one cache
	maxName      = 128       // bytes of a name of which there are few: a tier's owner
	// smallestEvent is the bytes of ["BlockRemoved", []], the shortest event that is kept: it bounds what a message's
	// count of events may reserve.
	smallestEvent = 15
	millisecond   = 1e11 // integer times above this are in milliseconds (Mooncake); as seconds it is the year 5138
)

// Decode reads one payload into b, which it resets first. Events with unknown names or unusable fields are skipped and
// counted. A payload that is no batch, or ends early, or has bytes after it, is rejected whole: the error says where,
// b is empty, and the message counts as lost, because it may have removed blocks.
//
// When b.More is set the payload has further events than fit in a bounded batch, all well-formed: apply b, then call
// [Decoder.Next]. What engines send fits nearly always. However long a payload is, all of its batches together allocate
// at most 32 MiB. The payload may be used again after the last batch, unless KeepRaw is set.
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

// Next reads the next events of the payload of the last Decode into b, the batch of that call, in place of those that
// it has. It returns false when there are no more.
func (d *Decoder) Next(b *Batch) bool {
	if !b.More {
		return false
	}
	b.Events, b.hashes, b.tokens, b.features = b.Events[:0], b.hashes[:0], b.tokens[:0], b.features[:0]
	b.Skipped, b.SkippedTags, b.Problem, b.ProblemAt, b.Incomplete = 0, b.SkippedTags[:0], "", 0, false
	d.c = cursor{p: d.rest.payload, i: d.rest.at}
	d.fill(b, d.rest.events)
	if d.c.broken != "" { // cannot be: Decode saw that they are well-formed
		b.Incomplete, d.rest.events = true, 0
	}
	d.c.p = nil
	if b.More = d.rest.events > 0; !b.More {
		d.rest = rest{}
	}
	return true
}

// batch takes the envelope: [time, events, rank?, …], or a map of the same (a draft of vllm#42892).
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
	for n = d.rest.events; n > 0 && d.c.skip(); n-- { // sees that they are well-formed
	}
	return true
}

// fill takes the next n events, as many as b has room for, and notes where the others begin.
func (d *Decoder) fill(b *Batch, n int) {
	b.Events = room(b.Events, min(n, d.c.left()/smallestEvent+1, fullEvents))
	for ; n > 0 && d.c.broken == "" && !b.full(); n-- {
		d.event(b)
	}
	d.rest.at, d.rest.events = d.c.i, n
}

// event takes one event, whole: when its fields are not usable it is skipped from its first byte.
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

// tagAt returns the name of the event that begins at start, or "untagged". The event is known to be well-formed.
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
