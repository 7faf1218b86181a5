package tokenizer

import (
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/zeebo/xxh3"

	"github.com/warmpath/warmpath/block"
)

// TurnCache encodes texts that grow at the end, as conversations do, and encodes only the new part. It keeps the ids of
// stretches. A stretch is a part of a text that ends at a special token, so that no text after the stretch can change
// its ids. For AppendSpecialAsText, a stretch is a whole text. The cache also keeps the text of each stretch, and
// compares the text before it returns the ids. So a hash collision cannot return wrong ids. The cache is bounded in
// bytes. Each shard evicts its least recently used stretches. The cache is safe for concurrent use. Its locks are
// sharded, and never held during an encoding. NewTurnCache makes a TurnCache.
type TurnCache struct {
	t      *Tokenizer
	cuts   *addedSet
	leads  []byte // first bytes of the tokens after which a text may be cut
	shards [turnShards]turnShard
}

const (
	turnShards = 64
	// minStretch is the least length of a stretch in bytes. With longer stretches, the unfinished stretch at the end of a
	// text, which is encoded every time, would take more time. With shorter stretches, a lookup would take more time than
	// the comparison of the texts.
	minStretch = 1024
	maxLeads   = 4
)

// DefaultTurnBytes is room for about 8 million tokens: eighty conversations of 100,000 tokens each.
const DefaultTurnBytes = 64 << 20

// turnShard is a part of the cache. mu guards all other fields.
type turnShard struct {
	mu      sync.Mutex
	entries map[uint64]*turnEntry
	recent  turnEntry // head of a ring of entries: recent.next is the most recently used
	bytes   int
	budget  int
	hits    uint64
	misses  uint64
}

// turnEntry is one stretch in the cache. Its links prev and next change; its other fields do not.
type turnEntry struct {
	prev, next *turnEntry
	key        uint64
	serial     uint64 // number that no other entry of the process has
	text       string
	ids        []block.Token
}

// serials counts the entries of all caches. So entries of different models have different serials, and a block.Prefix
// of one model never equals a block.Prefix of another model (see extend).
var serials atomic.Uint64

// Reuse says how many ids at the beginning of a text are known from earlier texts, and how many ids later texts can
// take from the cache.
type Reuse struct {
	// Known covers the leading stretches that were in the cache.
	Known block.Prefix
	// Stable covers Known and the stretches that are in the cache now. Normally these are all stretches except the
	// unfinished stretch at the end. When the text comes again with more text after it, Known covers the stretches that
	// Stable covers now, unless a stretch was evicted.
	Stable block.Prefix
}

// extend makes p cover one more stretch. After that p covers the given number of tokens. p.Mark is a hash of the
// serials of all stretches that p covers. A serial is never used twice, so equal marks mean equal stretches.
func extend(p *block.Prefix, serial uint64, tokens int) {
	var b [16]byte
	for i := range p.Mark {
		binary.LittleEndian.PutUint64(b[:], p.Mark[i])
		binary.LittleEndian.PutUint64(b[8:], serial)
		p.Mark[i] = xxh3.HashSeed(b[:], uint64(i))
	}
	p.Tokens = tokens
}

// TurnStats has the number of lookups that found a stretch (Hits), of lookups that found no stretch (Misses), and of
// stretches in the cache (Entries), with their size in bytes.
type TurnStats struct {
	Hits, Misses uint64
	Entries      int
	Bytes        int
}

// NewTurnCache returns a cache for t of about the given size in bytes. A size of 0 or less means DefaultTurnBytes.
func NewTurnCache(t *Tokenizer, bytes int) *TurnCache {
	if bytes <= 0 {
		bytes = DefaultTurnBytes
	}
	c := &TurnCache{t: t, cuts: t.raw.solid()}
	for b, is := range c.cuts.first {
		if is {
			c.leads = append(c.leads, byte(b))
		}
	}
	for i := range c.shards {
		s := &c.shards[i]
		s.entries = map[uint64]*turnEntry{}
		s.budget = bytes / turnShards
		s.recent.prev, s.recent.next = &s.recent, &s.recent
	}
	return c
}

// Append does the same as Tokenizer.Append, through the cache. reuse refers to the appended ids.
func (c *TurnCache) Append(dst []block.Token, text string, opts Options) (ids []block.Token, reuse Reuse, err error) {
	began := len(dst)
	out := dst
	var prefix block.Prefix // covers the stretches before start
	if opts.AddSpecial {
		out = append(out, c.t.before...)
		prefix.Mark[0] = 1 // a text with AddSpecial has other ids, so its marks must differ
	}
	leading, marked := true, true // leading: every stretch before start was in the cache; marked: every stretch before start is in the cache now
	scan := cutScan{set: c.cuts, leads: c.leads, text: text}
	for start := 0; start < len(text); {
		end := len(text)
		if !opts.SpecialAsText {
			if cut := scan.next(start + minStretch); cut >= 0 {
				end = cut
			}
		}
		stretch := text[start:end]
		last := end == len(text) && (opts.SpecialAsText || !scan.atCut)
		serial := uint64(0)
		if !last {
			out, serial = c.get(out, stretch, stretchAt(start))
		}
		if serial == 0 {
			leading = false
			before := len(out)
			valid := stretch // only a stretch that is not in the cache is encoded; cuts never divide a character
			if !utf8.ValidString(valid) {
				valid = string([]rune(valid))
			}
			if out, err = c.t.appendStretch(out, valid, start == 0, opts); err != nil {
				return dst, Reuse{}, err
			}
			if !last {
				serial = c.put(stretch, stretchAt(start), out[before:])
			}
		}
		if marked = marked && serial != 0; marked {
			extend(&prefix, serial, len(out)-began)
			reuse.Stable = prefix
		}
		if leading {
			reuse.Known = reuse.Stable
		}
		start = end
	}
	if opts.AddSpecial {
		out = append(out, c.t.after...)
	}
	return out, reuse, nil
}

// AppendBytes does the same as Append for text in a byte slice. The slice must not change during the call.
func (c *TurnCache) AppendBytes(dst []block.Token, text []byte, opts Options) (ids []block.Token, reuse Reuse,
	err error) {
	return c.Append(dst, view(text), opts)
}

// appendStretch does the same as Append for a part of a text, which must be valid UTF-8. It adds no tokens around the
// part.
func (t *Tokenizer) appendStretch(dst []block.Token, text string, atStart bool, opts Options) ([]block.Token, error) {
	e := t.encoder(dst)
	err := e.text(text, atStart, opts)
	out := e.dst
	e.release()
	if err != nil {
		return dst, err
	}
	return out, nil
}

// stretchKind says where in its text a stretch is. The same stretch may have other ids at another place.
type stretchKind uint64

const (
	inTheMiddle stretchKind = iota
	atTheStart
	wholeText // the stretch is a whole text, encoded with SpecialAsText
)

func stretchAt(start int) stretchKind {
	if start == 0 {
		return atTheStart
	}
	return inTheMiddle
}

func turnKey(text string, kind stretchKind) uint64 { return xxh3.HashStringSeed(text, uint64(kind)) }

// AppendSpecialAsText does the same as Tokenizer.Append with SpecialAsText, through the cache. It is for prompts whose
// pieces are encoded separately, such as Harmony prompts. Later prompts may have the same pieces.
func (c *TurnCache) AppendSpecialAsText(dst []block.Token, text string) ([]block.Token, error) {
	if len(text) < minStretch/4 {
		return c.t.Append(dst, text, Options{SpecialAsText: true})
	}
	out, serial := c.get(dst, text, wholeText)
	if serial != 0 {
		return out, nil
	}
	before := len(out)
	out, err := c.t.Append(out, text, Options{SpecialAsText: true})
	if err == nil {
		c.put(text, wholeText, out[before:])
	}
	return out, err
}

// get appends the ids of a stretch, and returns the stretch's serial. If the cache does not have the stretch, the
// serial is 0.
func (c *TurnCache) get(dst []block.Token, text string, kind stretchKind) ([]block.Token, uint64) {
	key := turnKey(text, kind)
	s := &c.shards[key%turnShards]
	s.mu.Lock()
	e := s.entries[key]
	if e == nil {
		s.misses++
		s.mu.Unlock()
		return dst, 0
	}
	s.hits++
	e.unlink()
	s.recent.link(e)
	s.mu.Unlock()
	if e.text != text {
		return dst, 0
	}
	return append(dst, e.ids...), e.serial
}

// entryBytes is the memory of an entry in bytes, without its text and ids.
const entryBytes = 168

func (e *turnEntry) size() int { return len(e.text) + 4*len(e.ids) + entryBytes }

// put adds a stretch to the cache, and returns the stretch's serial. If the stretch is too large for the cache, the
// serial is 0.
func (c *TurnCache) put(text string, kind stretchKind, ids []block.Token) uint64 {
	key := turnKey(text, kind)
	s := &c.shards[key%turnShards]
	e := &turnEntry{key: key, serial: serials.Add(1), text: text, ids: ids}
	if e.size() > s.budget {
		return 0
	}
	e.text, e.ids = strings.Clone(text), slices.Clone(ids)
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.entries[key]; old != nil {
		s.drop(old)
	}
	s.entries[key] = e
	s.recent.link(e)
	for s.bytes += e.size(); s.bytes > s.budget; {
		s.drop(s.recent.prev)
	}
	return e.serial
}

func (s *turnShard) drop(e *turnEntry) {
	e.unlink()
	delete(s.entries, e.key)
	s.bytes -= e.size()
}

func (e *turnEntry) unlink() { e.prev.next, e.next.prev = e.next, e.prev }

// link puts x directly after e in the ring.
func (e *turnEntry) link(x *turnEntry) {
	x.prev, x.next = e, e.next
	e.next.prev = x
	e.next = x
}

// Stats returns the cache's counters.
func (c *TurnCache) Stats() TurnStats {
	var sum TurnStats
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		sum.Hits += s.hits
		sum.Misses += s.misses
		sum.Entries += len(s.entries)
		sum.Bytes += s.bytes
		s.mu.Unlock()
	}
	return sum
}

// cutScan finds the places at which a text may be cut: after each solid token (see solid).
type cutScan struct {
	set   *addedSet
	leads []byte
	text  string
	ahead [maxLeads]int // for each byte of leads: next position of the byte in the text; stale if the scan is beyond this position
	atCut bool          // the last call of next found a cut
}

// next returns the end of the first solid token that begins at or after from, or -1 if there is no such token.
func (c *cutScan) next(from int) int {
	c.atCut = false
	for from < len(c.text) {
		at := len(c.text)
		for i, b := range c.leads {
			if c.ahead[i] < from {
				if n := strings.IndexByte(c.text[from:], b); n >= 0 {
					c.ahead[i] = from + n
				} else {
					c.ahead[i] = len(c.text)
				}
			}
			at = min(at, c.ahead[i])
		}
		if at == len(c.text) {
			break
		}
		if end := c.set.match(c.text, at); end >= 0 {
			c.atCut = true
			return end
		}
		from = at + 1
	}
	return -1
}

// match returns the end of the longest token that begins at position at, or -1 if no token begins there.
func (s *addedSet) match(text string, at int) int {
	node, end := int32(0), -1
	for i := at; i < len(text); i++ {
		if node = s.child(node, text[i]); node < 0 {
			break
		}
		if s.nodes[node].token >= 0 {
			end = i + 1
		}
	}
	return end
}

// solid returns the solid tokens, after which a text may be cut. Two conditions hold for a solid token. First, the
// token is found wherever its text occurs: no other token overlaps its beginning or extends beyond its end, and the
// character after the token does not matter. Second, the text before the token does not change the ids of the text
// after it. solid leaves out tokens with rare first bytes: the others have at most maxLeads different first bytes.
func (s *addedSet) solid() *addedSet {
	tails := map[string]bool{} // all suffixes of all tokens
	open := map[int32]bool{}   // tokens that occur inside another token, but not at its end
	words := false
	for i := range s.tokens {
		text := s.tokens[i].content
		words = words || s.tokens[i].singleWord
		for from := range len(text) {
			tails[text[from:]] = true
			node := int32(0)
			for at := from; at < len(text)-1; at++ {
				if node = s.child(node, text[at]); node < 0 {
					break
				}
				if t := s.nodes[node].token; t >= 0 {
					open[t] = true
				}
			}
		}
	}
	var list []addedToken
	count := map[byte]int{}
	for i := range s.tokens {
		t := &s.tokens[i]
		if !t.special || t.rstrip || t.singleWord || open[int32(i)] || words && endsInWord(t.content) ||
			overlapped(t.content, tails) {
			continue
		}
		list = append(list, *t)
		count[t.content[0]]++
	}
	var leads []byte
	for b := range count {
		leads = append(leads, b)
	}
	slices.SortFunc(leads, func(a, b byte) int { return (count[b]-count[a])<<8 + int(a) - int(b) })
	leads = leads[:min(len(leads), maxLeads)]
	out := newAddedSet()
	for _, t := range list {
		if slices.Contains(leads, t.content[0]) {
			out.add(t, t.content)
		}
	}
	return out
}

// overlapped reports whether a token ends with the beginning of text, so that the token and text may overlap.
func overlapped(text string, tails map[string]bool) bool {
	for n := 1; n < len(text); n++ {
		if tails[text[:n]] {
			return true
		}
	}
	return false
}

func endsInWord(text string) bool {
	c, _ := utf8.DecodeLastRuneInString(text)
	return lookupRun(unicodeTables().regexWord, c) != 0
}
