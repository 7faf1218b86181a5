package snapshot

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/zeebo/xxh3"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvfeed"
	"github.com/warmpath/warmpath/kvindex"
)

// magic begins each snapshot.
const magic = "warmpath-index"

// formatVersion is the number of the format that this package reads and writes. It changes with each change that an
// older reader would misunderstand.
const formatVersion = 1

// The kinds of sections.
const (
	kindHeader  = 1 // header, JSON
	kindHolder  = 2 // kvfeed.Checkpoint, JSON
	kindDigests = 3 // 64 bits each
	kindRuns    = 4 // whole runs: see appendRun
	kindDone    = 5 // the end of a holder: the number of its runs, 64 bits
	kindSkipped = 6 // skippedHolder, JSON
	kindEnd     = 7 // the end of the snapshot: the number of its holders, 64 bits
	kindAlive   = 8 // between holders, without content: the writer needs time for the next holder
)

const (
	sectionHead = 1 + 4   // kind and length
	maxSection  = 2 << 20 // content of one section: enough for some 10^5 blocks
	maxJSON     = 64 << 10
	// runBlocks is the most blocks of one run in a snapshot. Longer runs are divided. It bounds a section.
	runBlocks = 1 << 15
	// runBytes is about the memory of a run without its blocks, and blockBytes the memory of a block.
	runBytes, blockBytes = 160, 16
	// holderBytes is about the memory of a holder without its texts, digests and runs.
	holderBytes = 1 << 10
)

// header says who made a snapshot.
type header struct {
	Router  string `json:"router"`  // the router's version
	Created int64  `json:"created"` // Unix seconds
}

// skippedHolder is a holder of which a snapshot has no checkpoint, and why.
type skippedHolder struct {
	Worker string `json:"worker"`
	Rank   int    `json:"rank"`
	Why    string `json:"why"`
	// Invalid says that the snapshot has a checkpoint of the holder, which cannot be used. A reader sets it.
	Invalid bool `json:"-"`
}

// The errors of a reader.
var (
	// errForeign means that the bytes are no snapshot.
	errForeign = errors.New("this is no snapshot of an index")
	// errVersion means that the snapshot has another format.
	errVersion = errors.New("another version of the format")
	// errDamaged means that the bytes were changed, or that no writer made them.
	errDamaged = errors.New("the snapshot is damaged")
	// errCut means that the end of the snapshot is missing.
	errCut = errors.New("the snapshot is cut short")
	// errLarge means that the snapshot has more blocks than the reader may keep.
	errLarge = errors.New("the snapshot is too large: raise index.bytes")
	// errKnown means that a holder is passed over.
	errKnown = errors.New("the holder is known")
	// errInvalid means that a checkpoint has something impossible. The others of the snapshot are good.
	errInvalid = errors.New("the checkpoint is invalid")
)

// writer writes a snapshot. It is not safe for concurrent use. After an error, all calls return an error.
type writer struct {
	w       io.Writer
	section []byte
	holders uint64
	err     error
}

// newWriter writes the beginning of a snapshot.
func newWriter(w io.Writer, h header) (*writer, error) {
	out := &writer{w: w}
	_, out.err = w.Write(binary.LittleEndian.AppendUint16([]byte(magic), formatVersion))
	out.json(kindHeader, h)
	return out, out.err
}

// holder writes one holder. A run may be divided. If no reader would take the holder, it writes nothing, and the
// error wraps errInvalid: the snapshot can go on with another holder.
func (w *writer) holder(c *kvfeed.Checkpoint) error {
	if err := writable(c); err != nil {
		return err
	}
	w.holders++
	w.json(kindHolder, c)
	w.begin()
	for _, d := range c.Digests {
		w.section = binary.LittleEndian.AppendUint64(w.section, d)
	}
	w.end(kindDigests)
	runs := uint64(0)
	w.begin()
	for i := range c.Runs {
		for _, run := range divided(&c.Runs[i]) {
			if len(w.section)+runBytes+blockBytes*len(run.Keys) > maxSection {
				w.end(kindRuns)
				w.begin()
			}
			w.section = appendRun(w.section, &run)
			runs++
		}
	}
	w.end(kindRuns)
	w.number(kindDone, runs)
	return w.err
}

// writable returns why no reader would take a checkpoint, as errInvalid; nil: it is good.
func writable(c *kvfeed.Checkpoint) error {
	if err := c.Validate(); err != nil {
		return fmt.Errorf("%w: %w", errInvalid, err)
	}
	if text, err := json.Marshal(c); err != nil || len(text) > maxJSON {
		return fmt.Errorf("%w: its description has %d bytes, at most %d may be written (%v)", errInvalid, len(text), maxJSON, err)
	}
	for i := range c.Runs {
		if !validRun(&c.Runs[i]) {
			return fmt.Errorf("%w: run %d of its blocks is impossible", errInvalid, i)
		}
	}
	return nil
}

// validRun reports whether takeRun can read a run, also if it is divided.
func validRun(run *kvindex.Held) bool {
	for _, n := range [...]int{run.Group, run.Window, run.Depth} {
		if n < 0 || n > math.MaxInt32-len(run.Keys) {
			return false
		}
	}
	return run.Tier <= block.NumTiers && run.Attention <= block.AttentionOther && len(run.Keys) == len(run.Hashes)
}

// skip writes that the snapshot has no checkpoint of a holder.
func (w *writer) skip(s skippedHolder) error {
	w.json(kindSkipped, s)
	return w.err
}

// alive writes that the next holder takes its time.
func (w *writer) alive() {
	w.begin()
	w.end(kindAlive)
}

// close writes the end of the snapshot. It does not close the underlying writer.
func (w *writer) close() error {
	w.number(kindEnd, w.holders)
	return w.err
}

func (w *writer) begin() { w.section = append(w.section[:0], make([]byte, sectionHead)...) }

// end writes the section whose content is in w.section.
func (w *writer) end(kind byte) {
	if w.err != nil {
		return
	}
	w.section[0] = kind
	binary.LittleEndian.PutUint32(w.section[1:], uint32(len(w.section)-sectionHead))
	w.section = binary.LittleEndian.AppendUint64(w.section, xxh3.Hash(w.section))
	_, w.err = w.w.Write(w.section)
}

func (w *writer) number(kind byte, n uint64) {
	w.begin()
	w.section = binary.LittleEndian.AppendUint64(w.section, n)
	w.end(kind)
}

func (w *writer) json(kind byte, v any) {
	if w.err != nil {
		return
	}
	text, err := json.Marshal(v)
	if err == nil && len(text) > maxJSON {
		err = fmt.Errorf("the description of a holder has %d bytes, at most %d may be written", len(text), maxJSON)
	}
	if w.err = err; err != nil {
		return
	}
	w.begin()
	w.section = append(w.section, text...)
	w.end(kind)
}

// divided returns a run in parts of at most runBlocks blocks.
func divided(run *kvindex.Held) (parts []kvindex.Held) {
	rest := *run
	for len(rest.Keys) > runBlocks {
		part := rest
		part.Keys, part.Hashes = rest.Keys[:runBlocks], rest.Hashes[:runBlocks]
		rest.Keys, rest.Hashes = rest.Keys[runBlocks:], rest.Hashes[runBlocks:]
		rest.Depth += runBlocks
		rest.Parent = part.Hashes[runBlocks-1]
		parts = append(parts, part)
	}
	return append(parts, rest)
}

// anyTierBit is set in the flags of a run with Held.AnyTierOrder.
const anyTierBit = 1

func appendRun(dst []byte, run *kvindex.Held) []byte {
	flags := byte(0)
	if run.AnyTierOrder {
		flags |= anyTierBit
	}
	dst = append(dst, byte(run.Tier), byte(run.Attention), flags)
	for _, n := range [...]int{run.Group, run.Window, run.Depth, int(run.Copies), len(run.Keys)} {
		dst = binary.LittleEndian.AppendUint32(dst, uint32(n))
	}
	dst = binary.LittleEndian.AppendUint64(dst, run.Parent)
	for _, k := range run.Keys {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(k))
	}
	for _, h := range run.Hashes {
		dst = binary.LittleEndian.AppendUint64(dst, h)
	}
	return dst
}

// runHead is the length of a run without its blocks.
const runHead = 3 + 5*4 + 8

// takeRun reads a run from the beginning of b, and returns the rest of b. ok is false if b has no valid run.
func takeRun(b []byte) (run kvindex.Held, rest []byte, ok bool) {
	if len(b) < runHead || b[2]&^anyTierBit != 0 {
		return run, nil, false
	}
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(b[3+4*i:]) }
	run = kvindex.Held{Tier: block.Tier(b[0]), Attention: block.Attention(b[1]), AnyTierOrder: b[2]&anyTierBit != 0}
	n := word(4)
	if run.Tier > block.NumTiers || run.Attention > block.AttentionOther || n > runBlocks || word(0) > math.MaxInt32 || word(1) > math.MaxInt32 || word(2) > math.MaxInt32 {
		return run, nil, false
	}
	run.Group, run.Window, run.Depth, run.Copies = int(word(0)), int(word(1)), int(word(2)), word(3)
	run.Parent = binary.LittleEndian.Uint64(b[runHead-8:])
	if b = b[runHead:]; len(b) < blockBytes*int(n) {
		return run, nil, false
	}
	if n > 0 {
		run.Keys, run.Hashes = make([]block.Key, n), make([]uint64, n)
		for i := range run.Keys {
			run.Keys[i] = block.Key(binary.LittleEndian.Uint64(b[8*i:]))
			run.Hashes[i] = binary.LittleEndian.Uint64(b[8*(int(n)+i):])
		}
	}
	return run, b[blockBytes*n:], true
}

// reader reads a snapshot. It trusts nothing: each section has a bounded length and a hash, and all holders
// together have a bounded memory. It is not safe for concurrent use.
type reader struct {
	header  header
	r       io.Reader
	room    int64                 // bytes that what follows may take
	unused  int64                 // bytes that may follow of holders that are not kept
	kept    int64                 // bytes of the checkpoints that each kept
	known   map[kvfeed.Place]bool // holders that are passed over
	holders uint64
	content []byte
	err     error
}

// newReader reads the beginning of a snapshot. room bounds the memory of all holders together that are kept, in bytes,
// and also that of all holders that are not.
func newReader(r io.Reader, room int64) (*reader, error) {
	in := &reader{r: r, room: room, unused: room}
	var head [len(magic) + 2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = errForeign
		}
		return nil, err
	}
	if string(head[:len(magic)]) != magic {
		return nil, errForeign
	}
	if v := binary.LittleEndian.Uint16(head[len(magic):]); v != formatVersion {
		return nil, fmt.Errorf("%w: it is %d, and this router reads %d", errVersion, v, formatVersion)
	}
	if kind := in.next(); in.err != nil {
		return nil, in.err
	} else if kind != kindHeader || !in.json(&in.header) {
		return nil, errDamaged
	}
	return in, nil
}

// nextHolder returns the next holder: its checkpoint, or why there is none. At the end of a whole snapshot the error is
// io.EOF. Any other error means that the rest cannot be read; the holders before it are good. A caller that does not
// keep the checkpoint calls drop.
func (r *reader) nextHolder() (*kvfeed.Checkpoint, *skippedHolder, error) {
	for {
		if c, s := r.holder(); c != nil || s != nil || r.err != nil {
			return c, s, r.err
		}
	}
}

// each reads to the end of the snapshot. It calls take with each checkpoint, and skip with each holder of which there
// is no good one. take reports whether the checkpoint is kept. n is the number of checkpoints. The error is that of
// nextHolder; nil at the end of a whole snapshot.
func (r *reader) each(take func(*kvfeed.Checkpoint) bool, skip func(*skippedHolder)) (n int, err error) {
	for {
		before := r.room
		c, s, err := r.nextHolder()
		switch {
		case errors.Is(err, io.EOF):
			return n, nil
		case err != nil:
			return n, err
		case c == nil:
			skip(s)
			continue
		}
		if n++; take(c) {
			r.kept += before - r.room
		} else {
			r.drop(before)
		}
	}
}

// holder is nextHolder, but it returns nothing for a known holder, and for a section "alive".
func (r *reader) holder() (*kvfeed.Checkpoint, *skippedHolder) {
	switch r.next() {
	case kindHolder:
		c, before := &kvfeed.Checkpoint{}, r.room
		// The section is as it was written, so a text that cannot be read costs this holder only.
		useless := json.Unmarshal(r.body(), c)
		if !r.take(holderBytes+int64(len(r.body()))) || !r.digests(c) {
			return nil, nil
		}
		known := useless == nil && r.known[kvfeed.Place{Worker: c.Worker, Rank: c.Rank}]
		switch {
		case known:
			useless = errKnown
		case useless == nil:
			useless = c.Validate()
		}
		if !r.runs(c, &useless) {
			return nil, nil
		}
		r.holders++
		if useless == nil {
			return c, nil
		}
		if r.drop(before); known {
			return nil, nil
		}
		return nil, &skippedHolder{c.Worker, c.Rank, fmt.Sprintf("%v: %v", errInvalid, useless), true}
	case kindSkipped:
		s := &skippedHolder{}
		if r.json(s) && r.take(int64(len(r.body()))) {
			return nil, s
		}
	case kindAlive:
		r.pass(holderBytes)
		return nil, nil
	case kindEnd:
		if r.number() == r.holders {
			r.fail(io.EOF)
		}
	}
	r.fail(errDamaged)
	return nil, nil
}

// drop gives the room of the holder that was read last back, because it is not kept. before was the room before it.
func (r *reader) drop(before int64) {
	r.pass(before - r.room)
	r.room = before
}

// pass notes that n bytes are not kept: a snapshot without an end must end.
func (r *reader) pass(n int64) {
	if r.unused -= n; r.unused < 0 {
		r.fail(errLarge)
	}
}

// take notes that n more bytes of memory are used, and reports whether there were so many.
func (r *reader) take(n int64) bool {
	if r.room -= n; r.room < 0 {
		r.fail(errLarge)
	}
	return r.room >= 0
}

// fail notes the first error.
func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// next reads a section into r.content, and returns its kind; 0 after an error.
func (r *reader) next() (kind byte) {
	if r.err != nil {
		return 0
	}
	var head [sectionHead]byte
	if _, err := io.ReadFull(r.r, head[:]); err != nil {
		r.failRead(err)
		return 0
	}
	n := int64(binary.LittleEndian.Uint32(head[1:]))
	if n > maxSection || (head[0] == kindHeader || head[0] == kindHolder || head[0] == kindSkipped) && n > maxJSON {
		r.fail(fmt.Errorf("%w: a section of %d bytes", errDamaged, n))
		return 0
	}
	// The buffer grows with the bytes that come, not with the length that the section claims.
	whole := bytes.NewBuffer(append(r.content[:0], head[:]...))
	if _, err := io.CopyN(whole, r.r, n+8); err != nil {
		r.failRead(err)
		return 0
	}
	r.content = whole.Bytes()
	sum := binary.LittleEndian.Uint64(r.content[sectionHead+n:])
	if xxh3.Hash(r.content[:sectionHead+n]) != sum {
		r.fail(fmt.Errorf("%w: a section has a wrong hash", errDamaged))
		return 0
	}
	return head[0]
}

func (r *reader) failRead(err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errCut
	}
	r.fail(err)
}

// body returns the content of the section that was read last.
func (r *reader) body() []byte {
	if len(r.content) < sectionHead+8 {
		return nil
	}
	return r.content[sectionHead : len(r.content)-8]
}

func (r *reader) json(v any) bool {
	if r.err != nil {
		return false
	}
	if err := json.Unmarshal(r.body(), v); err != nil {
		r.fail(fmt.Errorf("%w: %w", errDamaged, err))
		return false
	}
	return true
}

func (r *reader) number() uint64 {
	if b := r.body(); r.err == nil && len(b) == 8 {
		return binary.LittleEndian.Uint64(b)
	}
	return math.MaxUint64
}

func (r *reader) digests(c *kvfeed.Checkpoint) bool {
	if r.next() != kindDigests || len(r.body())%8 != 0 || len(r.body()) > 8*kvfeed.MaxDigests {
		r.fail(errDamaged)
		return false
	}
	if !r.take(int64(len(r.body()))) {
		return false
	}
	for b := r.body(); len(b) > 0; b = b[8:] {
		c.Digests = append(c.Digests, binary.LittleEndian.Uint64(b))
	}
	return true
}

// errRun means that a section has something else than runs.
var errRun = errors.New("one of its runs of blocks is impossible")

// runs reads the runs of a holder to their end. It keeps none of them if the holder is useless, and none after an
// impossible run, which makes the holder useless.
func (r *reader) runs(c *kvfeed.Checkpoint, useless *error) bool {
	for {
		switch kind := r.next(); kind {
		case kindRuns:
			if *useless == nil {
				*useless = r.someRuns(c)
			} else {
				r.pass(int64(len(r.body())))
			}
			if r.err != nil {
				return false
			}
		case kindDone:
			if n := r.number(); *useless == nil && n != uint64(len(c.Runs)) {
				*useless = fmt.Errorf("%d of its %d runs of blocks are there", len(c.Runs), n)
			}
			return true
		default:
			r.fail(errDamaged)
			return false
		}
	}
}

// someRuns reads the runs of one section.
func (r *reader) someRuns(c *kvfeed.Checkpoint) error {
	for b := r.body(); len(b) > 0; {
		run, rest, ok := takeRun(b)
		if !ok {
			return errRun
		}
		if !r.take(runBytes + blockBytes*int64(len(run.Keys))) {
			return r.err
		}
		c.Runs, b = append(c.Runs, run), rest
	}
	return nil
}
