package replica

import (
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// A packet has records, one after another. A record is its kind in one byte, the length of its content as a uvarint,
// and the content. A reader skips a record whose kind it does not know, and the end of a content that is longer than it
// knows. So a newer router may add kinds and fields, and older routers still understand the rest.
const (
	recordAdd       byte = 1  // a request was placed: a warmpath.Placement
	recordPrefilled byte = 2  // the prefill of a request has ended: its id
	recordFree      byte = 3  // a request has ended: its id
	recordHeartbeat byte = 4  // who the sender is
	recordAsk       byte = 5  // the sender asks for all requests under way at the receiver
	recordState     byte = 6  // the packet is a part of an answer to an ask
	recordGoodbye   byte = 7  // the sender stops
	recordSpent     byte = 8  // what a tenant has spent at the sender
	recordRecent    byte = 9  // a request that has ended, whose session or prompt is still of use: its age, and a Placement
	recordEcho      byte = 10 // the sender's clock, and for each router the clock of its last heartbeat
)

const (
	// mostString bounds each name in a record, in bytes. A longer session is not told.
	mostString = 1024
	// maxRecord is above the length of the longest record: two lists of keys, text, tokens, and nine names. It has to stay
	// far below the 1 MB that a NATS server takes by default.
	maxRecord = 2*warmpath.MaxPlacementKeys*8 + warmpath.MaxPlacementText + 4*warmpath.MaxPlacementTokens + 9*mostString + 512
)

// extent bounds how much of a prompt is told: keys, bytes of text, and tokens.
type extent struct{ keys, text, tokens int }

// errCut is the error about a content that ends too early.
var errCut = errors.New("the message is cut short")

// These bits are the flags of a Placement.
const (
	flagFromText = 1 << iota
	flagTokensKnown
	flagWhole
	flagPrefillCompleted
	flagGuess
)

const (
	// recordHead is the length of a record's kind and length, as appendRecord writes them.
	recordHead = 4
	// endingBytes is the length of the longest ending.
	endingBytes = 2*binary.MaxVarintLen64 + 2
)

// appendRecord appends a record whose content fill appends. It returns the longer slice.
func appendRecord(to []byte, kind byte, fill func([]byte) []byte) []byte {
	at := len(to)
	to = fill(append(to, kind, 0, 0, 0))
	// The length always takes three bytes, so that the content does not move. A uvarint may have leading groups of zero
	// bits.
	n := len(to) - at - recordHead
	to[at+1], to[at+2], to[at+3] = byte(n)|0x80, byte(n>>7)|0x80, byte(n>>14)&0x7f
	return to
}

// appendID appends a record of which the content is the id of a request.
func appendID(to []byte, kind byte, id uint64) []byte {
	var buf [binary.MaxVarintLen64]byte
	n := binary.PutUvarint(buf[:], id)
	return append(append(to, kind, byte(n)), buf[:n]...)
}

func appendString(to []byte, s string) []byte {
	if len(s) > mostString {
		s = "" // it is left out: the beginning of a name is another name
	}
	return append(binary.AppendUvarint(to, uint64(len(s))), s...)
}

func appendBool(to []byte, b bool) []byte {
	if b {
		return append(to, 1)
	}
	return append(to, 0)
}

// appendCount appends a number. Clients choose some of them, such as max_tokens, so they are cut here and in count.
func appendCount(to []byte, n int) []byte {
	return binary.AppendUvarint(to, uint64(min(max(n, 0), math.MaxInt32)))
}

// appendPlacement appends p as the content of a record. promptAt is the offset of what tells of the prompt, which comes
// last.
func appendPlacement(to []byte, p *warmpath.Placement, most extent) (out []byte, promptAt int) {
	to = binary.AppendUvarint(to, p.ID)
	to = append(to, flagsOf(p), byte(p.Leg), byte(p.Trust))
	for _, s := range [...]string{p.URL, p.Model, p.Base, p.LoRA, p.Policy, p.Session.Key, p.Session.Source, p.Tenant} {
		to = appendString(to, s)
	}
	for _, n := range [...]int{p.Rank, p.PromptTokens, p.UncachedTokens, p.ContextBlocks, p.MostTokens, p.Choices, p.TextBytes} {
		to = appendCount(to, n)
	}
	to = binary.LittleEndian.AppendUint64(to, p.Class)
	to = binary.AppendUvarint(to, uint64(max(p.Waited, 0)))
	levels := p.Levels[:min(len(p.Levels), fleet.MaxServiceLevels)]
	to = appendCount(to, len(levels))
	for _, l := range levels {
		to = binary.AppendUvarint(binary.AppendUvarint(to, uint64(max(l.FirstToken, 0))), uint64(max(l.PerToken, 0)))
	}
	promptAt = len(to)
	to = appendKeys(appendCount(to, p.BlockSize), p.Keys, most)
	to = appendKeys(appendCount(to, p.Ahead), p.AheadKeys, most)
	text := p.Text[:min(len(p.Text), most.text)]
	to = append(appendCount(to, len(text)), text...)
	tokens := p.Tokens[:min(len(p.Tokens), most.tokens)]
	to = appendCount(to, len(tokens))
	for _, t := range tokens {
		to = binary.LittleEndian.AppendUint32(to, t)
	}
	return to, promptAt
}

// appendAge appends how long ago the request of a Placement was placed. It follows the Placement, and may be missing.
func appendAge(to []byte, age time.Duration) []byte {
	return binary.AppendUvarint(to, uint64(max(age.Milliseconds(), 0)))
}

// age reads how long ago something was; 0 if the content has ended.
func (c *content) age() time.Duration {
	if len(c.data) == 0 {
		return 0
	}
	return time.Duration(min(c.uvarint(), uint64(warmpath.MaxPlacementAge.Milliseconds()))) * time.Millisecond
}

// noPrompt tells of no prompt: see appendPlacement.
var noPrompt = make([]byte, 6)

func flagsOf(p *warmpath.Placement) (flags byte) {
	for i, set := range [...]bool{p.FromText, p.TokensKnown, p.Whole, p.PrefillCompleted, p.Guess} {
		if set {
			flags |= 1 << i
		}
	}
	return flags
}

func appendKeys(to []byte, keys []block.Key, most extent) []byte {
	keys = keys[:min(len(keys), most.keys)]
	to = appendCount(to, len(keys))
	for _, k := range keys {
		to = binary.LittleEndian.AppendUint64(to, uint64(k))
	}
	return to
}

// content reads the content of a record. After the first error all values are zero. names holds strings that were read
// before, so that the name of a worker is not allocated for each request; nil holds none.
type content struct {
	data  []byte
	err   error
	names map[string]string
}

func (c *content) fail() {
	c.data, c.err = nil, errCut
}

func (c *content) uvarint() uint64 {
	v, n := binary.Uvarint(c.data)
	if n <= 0 {
		c.fail()
		return 0
	}
	c.data = c.data[n:]
	return v
}

// count reads a number. A larger one than math.MaxInt32 counts as that.
func (c *content) count() int { return int(min(c.uvarint(), math.MaxInt32)) }

func (c *content) bytes(n int) []byte {
	if n > len(c.data) {
		c.fail()
		return nil
	}
	b := c.data[:n]
	c.data = c.data[n:]
	return b
}

func (c *content) byte() byte {
	if b := c.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (c *content) fixed() uint64 {
	if b := c.bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// mostNames bounds the strings that are held: workers, models and policies are few.
const mostNames = 4096

// string reads a string. held says that the string is likely to come again.
func (c *content) string(held bool) string {
	n := c.count()
	if n > mostString {
		c.fail()
		return ""
	}
	b := c.bytes(n)
	if len(b) == 0 {
		return ""
	}
	if s, ok := c.names[string(b)]; ok {
		return s
	}
	s := string(b)
	if held && c.names != nil && len(c.names) < mostNames {
		c.names[s] = s
	}
	return s
}

// placement reads a Placement into p. It uses the memory of p's slices again, except that of Text: Text points into the
// packet. A Placement of an older router ends without an age.
func (c *content) placement(p *warmpath.Placement) {
	keys, ahead, tokens, levels := p.Keys, p.AheadKeys, p.Tokens[:0], p.Levels[:0]
	*p = warmpath.Placement{ID: c.uvarint()}
	flags := c.byte()
	p.FromText, p.TokensKnown, p.Whole = flags&flagFromText != 0, flags&flagTokensKnown != 0, flags&flagWhole != 0
	p.PrefillCompleted, p.Guess = flags&flagPrefillCompleted != 0, flags&flagGuess != 0
	p.Leg, p.Trust = fleet.Leg(c.byte()), fleet.Trust(c.byte())
	for _, s := range [...]*string{&p.URL, &p.Model, &p.Base, &p.LoRA, &p.Policy} {
		*s = c.string(true)
	}
	p.Session.Key, p.Session.Source, p.Tenant = c.string(false), c.string(true), c.string(true)
	for _, n := range [...]*int{&p.Rank, &p.PromptTokens, &p.UncachedTokens, &p.ContextBlocks, &p.MostTokens, &p.Choices, &p.TextBytes} {
		*n = c.count()
	}
	p.Class = c.fixed()
	p.Waited = c.duration()
	n := c.count()
	if n > fleet.MaxServiceLevels {
		c.fail()
		n = 0
	}
	for range n {
		levels = append(levels, fleet.ServiceLevel{FirstToken: c.duration(), PerToken: c.duration()})
	}
	p.Levels = levels
	p.BlockSize, p.Keys = c.count(), c.keys(keys[:0])
	p.Ahead, p.AheadKeys = c.count(), c.keys(ahead[:0])
	if n = c.count(); n > warmpath.MaxPlacementText {
		c.fail()
		n = 0
	}
	p.Text = c.bytes(n)
	if n = c.count(); n > warmpath.MaxPlacementTokens {
		c.fail()
		n = 0
	}
	for b := c.bytes(n * 4); len(b) >= 4; b = b[4:] {
		tokens = append(tokens, binary.LittleEndian.Uint32(b))
	}
	p.Tokens = tokens
	p.Age = c.age()
}

// keys reads keys, and appends them to to.
func (c *content) keys(to []block.Key) []block.Key {
	n := c.count()
	if n > warmpath.MaxPlacementKeys {
		c.fail()
		return to
	}
	for b := c.bytes(n * 8); len(b) >= 8; b = b[8:] {
		to = append(to, block.Key(binary.LittleEndian.Uint64(b)))
	}
	return to
}

// duration reads a duration, which is not negative.
func (c *content) duration() time.Duration {
	v := c.uvarint()
	if v > math.MaxInt64 {
		c.fail()
		return 0
	}
	return time.Duration(v)
}

// ending is the end of a request.
type ending struct {
	id uint64
	warmpath.Ending
}

// append appends e as a record.
func (e *ending) append(to []byte) []byte {
	return appendRecord(to, recordFree, func(to []byte) []byte {
		to = appendBool(binary.AppendUvarint(to, e.id), e.Unsent)
		return appendCount(append(to, byte(e.Outcome)), e.OutputTokens)
	})
}

func (c *content) ending() ending {
	return ending{c.uvarint(), warmpath.Ending{Unsent: c.byte() == 1, Outcome: fleet.Outcome(c.byte()), OutputTokens: c.count()}}
}

// heartbeat says who its sender is.
type heartbeat struct {
	name, admin, version string
	machine              string // the name of the sender's machine or container
	requests             int    // requests under way at the sender
	hello                bool   // the sender has just connected, and wants a heartbeat from each router at once
	noIndex              bool   // the sender has no index of its own that another router could read
}

func (h *heartbeat) append(to []byte) []byte {
	for _, s := range [...]string{h.name, h.admin, h.version, h.machine} {
		to = appendString(to, s)
	}
	return appendBool(appendBool(appendCount(to, h.requests), h.hello), h.noIndex)
}

func (c *content) heartbeat() (h heartbeat) {
	// These strings come with each heartbeat of the same few routers.
	h.name, h.admin, h.version, h.machine = c.string(true), c.string(true), c.string(true), c.string(true)
	h.requests, h.hello = c.count(), c.byte() == 1
	if len(c.data) > 0 { // the heartbeat of an older router has ended
		h.noIndex = c.byte() == 1
	}
	h.name, h.version, h.machine = label(h.name), label(h.version), label(h.machine)
	return h
}

// label returns a text of another router as one that logs and labels of metrics can have.
func label(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), 2*maxName)], "")
}

// echo is what a router repeats of another one's last heartbeat: so that one learns how long messages take.
type echo struct {
	to    uint64 // the other router
	clock int64  // of the heartbeat, microseconds of the other router's clock
	held  int64  // microseconds from its arrival to this echo
}

func (e *echo) append(to []byte) []byte {
	to = binary.LittleEndian.AppendUint64(to, e.to)
	return binary.AppendUvarint(binary.AppendUvarint(to, uint64(max(e.clock, 0))), uint64(max(e.held, 0)))
}

// clock reads a time in microseconds, which is not negative.
func (c *content) clock() int64 { return int64(c.duration()) }

func (c *content) echo() echo { return echo{to: c.fixed(), clock: c.clock(), held: c.clock()} }

// ask asks for all requests under way. nonce is repeated in the answer. recent also asks for recent requests that have
// ended.
type ask struct {
	nonce  uint64
	recent bool
}

func (a *ask) append(to []byte) []byte {
	return appendBool(binary.LittleEndian.AppendUint64(to, a.nonce), a.recent)
}

func (c *content) ask() (a ask) { return ask{nonce: c.fixed(), recent: c.byte() == 1} }

// statePart says which part of an answer a packet is. The answer has the requests that were under way after the packet
// with the number number to all.
type statePart struct {
	nonce, number uint64
	part, parts   int
}

func (s *statePart) append(to []byte) []byte {
	to = binary.AppendUvarint(binary.LittleEndian.AppendUint64(to, s.nonce), s.number)
	return appendCount(appendCount(to, s.part), s.parts)
}

func (c *content) statePart() statePart {
	return statePart{nonce: c.fixed(), number: c.uvarint(), part: c.count(), parts: c.count()}
}

// spent is what a tenant has spent at a router since the router's start, and its requests under way there.
type spent struct {
	tenant           string
	requests, tokens int64
	active           int
}

func (s *spent) append(to []byte) []byte {
	to = appendString(to, s.tenant)
	return appendCount(binary.AppendVarint(binary.AppendVarint(to, s.requests), s.tokens), s.active)
}

func (c *content) varint() int64 {
	v, n := binary.Varint(c.data)
	if n <= 0 {
		c.fail()
		return 0
	}
	c.data = c.data[n:]
	return v
}

func (c *content) spent() spent {
	return spent{tenant: c.string(true), requests: c.varint(), tokens: c.varint(), active: c.count()}
}

// nextRecord returns the first record of data, and the rest of data.
func nextRecord(data []byte) (kind byte, body, rest []byte, err error) {
	if len(data) == 0 {
		return 0, nil, nil, errCut
	}
	n, size := binary.Uvarint(data[1:])
	if size <= 0 || n > uint64(len(data)-1-size) {
		return 0, nil, nil, errCut
	}
	body = data[1+size:]
	return data[0], body[:n], body[n:], nil
}
