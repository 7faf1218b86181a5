package api

import (
	"bytes"
	"math"
	"slices"
	"strconv"

	"github.com/warmpath/warmpath/internal/jsonscan"
)

// Piece is the content of one event of a stream of OpenAIChat or OpenAICompletions with one choice, as vLLM and SGLang
// send it with return_token_ids. Its slices are valid until the next Read, and as long as the event does not change.
type Piece struct {
	Failed  bool     // the event reports an error
	Role    bool     // the delta names the role: the first event of a chat
	Other   bool     // the delta has more than text: a tool call, reasoning, a refusal; or there are log probabilities
	HasText bool     // the choice has a text, perhaps an empty one
	Text    []byte   // the text, without escapes
	Finish  []byte   // finish_reason as JSON; nil if it is null
	Stop    []byte   // stop_reason as JSON, SGLang's matched_stop; nil if the event has none
	Delta   []byte   // the delta of a chat as JSON
	Usage   []byte   // the usage as JSON; nil if there is none
	ID      []byte   // the event's id as JSON
	Created []byte   // the time of the event's creation as JSON
	Prompt  []uint32 // the ids of the prompt; empty if the event has none
	IDs     []uint32 // the generated ids of the event

	event        []byte
	text, finish span // in event; the text with its quotes
	stop, delta  span
	ids          []idList
	last         lastPiece
}

// Read reads the JSON of an event. It returns false if the event is not an object, or has more than one choice.
func (c *Piece) Read(event []byte) bool {
	event = event[:len(event):len(event)]
	if c.readLike(event) {
		return true
	}
	ok := c.readWhole(event)
	if ok {
		c.learn()
	}
	return ok
}

// lastPiece is the last event that had a text, ids and nothing else, without the text and the ids. Most events differ
// from the event before only in these two. Three comparisons recognize such an event. They take less than a tenth of
// the time of reading it (BenchmarkPiece).
type lastPiece struct {
	before, between, behind []byte // the text, then the ids, stand between these parts; before is empty: there is none
	member                  int    // where the member of the ids begins in between
	id, created             span   // in before
	delta                   span   // its end is counted from the beginning of between
	finish, stop            span   // counted from the beginning of between
}

// learn keeps the event if it has a text and ids, and nothing else.
func (c *Piece) learn() {
	if !c.HasText || c.Role || c.Other || c.Failed || c.Finish != nil || c.Usage != nil || len(c.ids) != 1 || c.ids[0].start < c.text.end || len(c.IDs) == 0 {
		return
	}
	l, list := &c.last, c.ids[0]
	close := c.text.end - 1 // the quote behind the text
	l.before = append(l.before[:0], c.event[:c.text.start+1]...)
	l.between = append(l.between[:0], c.event[close:list.start+1]...)
	l.behind = append(l.behind[:0], c.event[list.end-1:]...)
	l.member = list.member - close
	l.id, l.created, l.delta = c.placeOf(c.ID), c.placeOf(c.Created), span{}
	if c.Delta != nil {
		l.delta = span{c.delta.start, c.delta.end - close}
	}
	l.finish, l.stop = c.finish.from(close), c.stop.from(close)
	within := func(s span, n int) bool { return s.start >= 0 && s.end <= n }
	if !within(l.id, len(l.before)) || !within(l.created, len(l.before)) || !within(l.finish, len(l.between)) || !within(l.stop, len(l.between)) || l.member < 0 ||
		c.Delta != nil && (c.delta.start > c.text.start || c.delta.end < c.text.end) {
		l.before = l.before[:0] // the members have another order
	}
}

// from returns the span as counted from a position on. An empty span stays empty.
func (s span) from(at int) span {
	if s.end == 0 {
		return s
	}
	return span{s.start - at, s.end - at}
}

func (c *Piece) placeOf(value []byte) span {
	if value == nil {
		return span{}
	}
	return c.spanOf(value)
}

// readLike reads an event that differs from the last one only in its text, which has no escapes, and in its ids.
func (c *Piece) readLike(event []byte) bool {
	l := &c.last
	if len(l.before) == 0 || len(event) < len(l.before)+len(l.between)+len(l.behind) || !bytes.HasPrefix(event, l.before) || !bytes.HasSuffix(event, l.behind) {
		return false
	}
	from := len(l.before)
	n := jsonscan.UnescapedLen(event[from:])
	close, end := from+n, len(event)-len(l.behind)
	if close > end || !bytes.HasPrefix(event[close:], l.between) {
		return false
	}
	begin := close + len(l.between)
	if begin >= end {
		return false
	}
	ids := c.IDs[:0]
	id, digits := uint64(0), 0
	for _, d := range event[begin:end] {
		switch {
		case d >= '0' && d <= '9' && digits < 10:
			id, digits = id*10+uint64(d-'0'), digits+1
		case d == ',' && digits > 0:
			ids, id, digits = append(ids, uint32(id)), 0, 0
		default:
			return false
		}
		if id > math.MaxUint32 {
			return false
		}
	}
	if digits == 0 {
		return false
	}
	*c = Piece{
		event: event, HasText: true, Text: append(c.Text[:0], event[from:close]...), Prompt: c.Prompt[:0], IDs: append(ids, uint32(id)),
		text: span{from - 1, close + 1}, last: c.last, ids: append(c.ids[:0], idList{span{begin - 1, end + 1}, close + c.last.member}),
	}
	l = &c.last
	if l.id.end > 0 {
		c.ID = event[l.id.start:l.id.end]
	}
	if l.created.end > 0 {
		c.Created = event[l.created.start:l.created.end]
	}
	if l.delta.start > 0 {
		c.delta = span{l.delta.start, close + l.delta.end}
		c.Delta = event[c.delta.start:c.delta.end]
	}
	c.finish = l.finish.from(-close)
	if c.stop = l.stop.from(-close); c.stop.end > 0 {
		c.Stop = event[c.stop.start:c.stop.end]
	}
	return true
}

func (c *Piece) readWhole(event []byte) bool {
	*c = Piece{event: event, Text: c.Text[:0], Prompt: c.Prompt[:0], IDs: c.IDs[:0], ids: c.ids[:0], last: c.last}
	s := jsonscan.New(event, maxDepth)
	if s.Peek() != '{' {
		return false
	}
	if s.Skip(); !s.End() || s.Err() != nil {
		return false
	}
	for key, value := range jsonscan.Members(event) {
		switch string(key) {
		case "error":
			c.Failed = !isNull(value)
		case "id":
			c.ID = value
		case "created":
			c.Created = value
		case "prompt_token_ids":
			c.readIDs(&c.Prompt, key, value)
		case "usage":
			if !isNull(value) {
				c.Usage = value
			}
		case "choices":
			for i, choice := range jsonscan.Items(value) {
				if c.readChoice(choice); bytes.ContainsRune(value[:i], '{') {
					return false
				}
			}
		}
	}
	return true
}

func (c *Piece) readChoice(choice []byte) {
	for key, value := range jsonscan.Members(choice) {
		switch string(key) {
		case "delta":
			c.Delta, c.delta = value, c.spanOf(value)
			c.readDelta(value)
		case "text":
			c.readText(value)
		case "finish_reason":
			if c.finish = c.spanOf(value); !isNull(value) {
				c.Finish = value
			}
		case "stop_reason", "matched_stop": // the second is SGLang's name
			c.stop, c.Stop = c.spanOf(value), value
		case "prompt_token_ids":
			c.readIDs(&c.Prompt, key, value)
		case "token_ids":
			c.readIDs(&c.IDs, key, value)
		case "logprobs":
			c.Other = c.Other || !isNull(value)
		}
	}
}

func (c *Piece) readDelta(delta []byte) {
	for key, value := range jsonscan.Members(delta) {
		switch {
		case string(key) == "content" && value[0] == '"':
			c.readText(value)
		case string(key) == "role":
			c.Role = true
		case !isNull(value) && string(value) != "[]":
			c.Other = true
		}
	}
}

func (c *Piece) readText(value []byte) {
	if value[0] == '"' {
		c.HasText, c.text = true, c.spanOf(value)
		c.Text, _ = jsonscan.Unescape(c.Text, value[1:len(value)-1])
	}
}

// readIDs appends a list of ids to dst.
func (c *Piece) readIDs(dst *[]uint32, key, value []byte) {
	if value[0] != '[' {
		return
	}
	c.ids = append(c.ids, idList{member: cap(c.event) - cap(key) - 1, span: c.spanOf(value)})
	for _, item := range jsonscan.Items(value) {
		id, err := strconv.ParseUint(string(item), 10, 32)
		if err != nil {
			c.Other = true // it is no list of ids
			return
		}
		*dst = append(*dst, uint32(id))
	}
}

// idList is the place of a list of ids in an event: the value, and where its member begins.
type idList struct {
	span
	member int
}

func isNull(value []byte) bool { return string(value) == "null" }

// spanOf returns the position of a value in the event. The value is a slice of the event up to its capacity.
func (c *Piece) spanOf(value []byte) span {
	at := cap(c.event) - cap(value)
	return span{at, at + len(value)}
}

// AppendWithoutIDs appends the event as the engine sends it without return_token_ids. vLLM from 0.32 on then sends null
// in place of the lists. With remove, the members are left out instead, as older versions do.
func (c *Piece) AppendWithoutIDs(dst []byte, remove bool) []byte {
	done := 0
	for _, list := range c.ids {
		from, to := list.start, list.end
		if remove {
			from, to = c.member(&list)
		}
		dst = append(dst, c.event[done:max(from, done)]...)
		if !remove {
			dst = append(dst, "null"...)
		}
		done = max(to, done)
	}
	return append(dst, c.event[done:]...)
}

// member returns the place of a list's whole member, with the comma before it, or else the comma behind it.
func (c *Piece) member(list *idList) (from, to int) {
	before := bytes.TrimRight(c.event[:list.member], " \t\r\n")
	if bytes.HasSuffix(before, []byte(",")) {
		return len(before) - 1, list.end
	}
	behind := bytes.TrimLeft(c.event[list.end:], " \t\r\n")
	if bytes.HasPrefix(behind, []byte(",")) {
		behind = behind[1:]
	}
	return list.member, len(c.event) - len(behind)
}

// AppendLike appends an event like c with another text, and with from's finish_reason and stop_reason.
func (c *Piece) AppendLike(dst []byte, text string, from *Piece) []byte {
	return c.appendLike(dst, c.text, appendString(nil, text), from.Finish, from.Stop)
}

// AppendDelta appends an event like c, of a chat, with another delta, finish_reason and stop_reason.
func (c *Piece) AppendDelta(dst, delta, finish, stop []byte) []byte {
	return c.appendLike(dst, c.delta, delta, finish, stop)
}

// appendLike appends the event with another value at a place. The members of the event may have any order.
func (c *Piece) appendLike(dst []byte, at span, value, finish, stop []byte) []byte {
	type change struct {
		span
		value []byte
	}
	changes := append(make([]change, 0, 3), change{at, value})
	if finish != nil && c.finish.end > 0 {
		switch {
		case stop != nil && c.stop.end > 0:
			changes = append(changes, change{c.stop, stop})
		case stop != nil:
			finish = append(append(slices.Clone(finish), `,"stop_reason":`...), stop...)
		}
		changes = append(changes, change{c.finish, finish})
	}
	slices.SortFunc(changes, func(a, b change) int { return a.start - b.start })
	done := 0
	for _, to := range changes {
		dst = append(append(dst, c.event[done:to.start]...), to.value...)
		done = to.end
	}
	return append(dst, c.event[done:]...)
}
