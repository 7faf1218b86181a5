package api

import (
	"bytes"

	"github.com/warmpath/warmpath/internal/jsonscan"
)

const (
	dataPrefix = "data:"
	doneMark   = "[DONE]"
)

// eventLines splits a stream of server-sent events into lines. It reads only lines that begin with "data:". A line ends
// with LF, CR LF or CR. An event ends with an empty line.
type eventLines struct {
	length  int  // number of bytes of the current line so far
	prefix  int  // number of matching bytes of "data:" so far; -1: the line begins with another text
	payload int  // number of bytes of the line's payload so far
	match   int  // number of matching bytes of "[DONE]" in the payload so far
	open    bool // the current event has begun
	data    bool // the current event has a data line
	afterCR bool // the last byte was a CR: if an LF follows, both are one line end
	done    bool // [DONE] was seen
}

// head reads a byte of the part of the line that comes before the payload.
func (l *eventLines) head(c byte) {
	if l.prefix >= 0 {
		if c == dataPrefix[l.prefix] {
			l.prefix++
		} else {
			l.prefix = -1
		}
	}
	l.length++
	l.open = true
}

// end ends a line.
func (l *eventLines) end() {
	if l.payload == len(doneMark) && l.match == len(doneMark) {
		l.done = true
	}
	l.data = l.data || l.prefix == len(dataPrefix)
	l.length, l.prefix, l.payload, l.match = 0, 0, 0, 0
}

// body returns the part of b that belongs to the line, without its line end.
func (l *eventLines) body(b []byte) []byte {
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		b = b[:i]
	}
	if i := bytes.IndexByte(b, '\r'); i >= 0 {
		b = b[:i]
	}
	l.length += len(b)
	return b
}

// text takes the next piece of a data line's payload, and returns it without the one space that may come before the
// payload. skipped is 1 if there was such a space, else 0.
func (l *eventLines) text(b []byte) (text []byte, skipped int) {
	if l.length-len(b) == len(dataPrefix) && len(b) > 0 && b[0] == ' ' {
		b, skipped = b[1:], 1
	}
	for _, c := range b[:min(len(b), len(doneMark))] {
		if l.match == l.payload && l.match < len(doneMark) && c == doneMark[l.match] {
			l.match++
		}
		l.payload++
	}
	l.payload += max(0, len(b)-len(doneMark))
	return b, skipped
}

func (w *Watcher) feedEvents(chunk []byte) (whole int) {
	l := &w.lines
	start := -1 // where the current event begins in chunk; -1: in an earlier chunk
	if !l.open && !l.afterCR {
		start = 0
	}
	for i := 0; i < len(chunk); {
		if i == start {
			if n := w.last.match(chunk[i:]); n > 0 {
				i += n
				whole, start = i, i
				w.pieces++
				w.events++
				continue
			}
		}
		switch c := chunk[i]; {
		case c == '\n' && l.afterCR:
			l.afterCR = false
			i++
			if !l.open && whole == i-1 {
				whole, start = i, i
			}
		case c == '\n' || c == '\r':
			l.afterCR = c == '\r'
			i++
			if l.length > 0 {
				l.end()
				continue
			}
			w.endEvent(chunk, start, i)
			whole, start = i, i
			if w.failed {
				return whole
			}
		case l.prefix == len(dataPrefix):
			l.afterCR = false
			rest := l.body(chunk[i:])
			text, skipped := l.text(rest)
			w.json.feed(text, i+skipped)
			i += len(rest)
		case l.prefix < 0:
			l.afterCR = false
			i += len(l.body(chunk[i:]))
		default:
			l.afterCR = false
			l.head(c)
			i++
		}
	}
	return whole
}

// endEvent ends the event chunk[start:end]. start is -1 if the event began in an earlier chunk.
func (w *Watcher) endEvent(chunk []byte, start, end int) {
	w.json.endScalar()
	if start >= 0 {
		w.last.learn(&w.json, chunk[start:end], start)
	}
	if w.json.generated {
		w.pieces++
	}
	if w.lines.data {
		if w.events++; w.events == 1 {
			w.begun = w.json.answers && w.json.tokens.Depth() == 0
		}
	}
	w.json.next()
	w.lines.open, w.lines.data = false, false
	w.failed = w.json.failed
}

// contentEvent remembers the bytes around the content of the last event that has one piece of content and nothing else.
// Most events of a stream differ from the event before only in their content, and in their token ids if these were
// asked for. Two or three comparisons recognize such an event; this costs a tenth of reading its document
// (BenchmarkWatcher).
type contentEvent struct {
	prefixLen, suffixLen int
	ids, behindIDs       int       // suffix[ids:behindIDs] is a list of token ids, without its brackets; both are 0 without one
	prefix               [512]byte // bytes from the event's beginning to the quote that opens the content
	suffix               [256]byte // bytes from the quote that closes the content to the empty line
}

// match returns the length of the event at the beginning of b if that event differs from the remembered one only in its
// content; otherwise 0.
func (e *contentEvent) match(b []byte) int {
	if e.prefixLen == 0 || len(b) < e.prefixLen+e.suffixLen || !bytes.Equal(b[:e.prefixLen], e.prefix[:e.prefixLen]) {
		return 0
	}
	i := e.prefixLen
	for {
		n := jsonscan.UnescapedLen(b[i:])
		if i += n; i >= len(b) {
			return 0
		}
		switch b[i] {
		case '"':
			n := e.matchSuffix(b[i:])
			if n == 0 {
				return 0
			}
			return i + n
		case '\\':
			i += 2
		default: // a control character: it may end the line, so the event must be read in full
			return 0
		}
		if i >= len(b) {
			return 0
		}
	}
}

// matchSuffix returns the length of the suffix with which b begins, 0 if b does not begin with it.
func (e *contentEvent) matchSuffix(b []byte) int {
	before := e.suffix[:e.ids]
	if !bytes.HasPrefix(b, before) {
		return 0
	}
	n := e.ids
	for e.ids > 0 && n < len(b) && (b[n] >= '0' && b[n] <= '9' || b[n] == ',') {
		n++
	}
	if behind := e.suffix[e.behindIDs:e.suffixLen]; n > e.ids == (e.ids > 0) && bytes.HasPrefix(b[n:], behind) {
		return n + len(behind)
	}
	return 0
}

// tokenIDs is the beginning of a list of token ids in an event of vLLM or SGLang.
var tokenIDs = []byte(`"token_ids":[`)

// learn remembers event if it has one piece of content and nothing else, and if it fits into prefix and suffix. offset
// is the position of the event in its chunk.
func (e *contentEvent) learn(doc *document, event []byte, offset int) {
	from, to := doc.contentStart-offset, doc.contentEnd-offset
	if !doc.onlyContent() || from <= 0 || to <= from || from > len(e.prefix) || len(event)-to > len(e.suffix) {
		return
	}
	e.prefixLen = copy(e.prefix[:], event[:from])
	e.suffixLen = copy(e.suffix[:], event[to:])
	e.ids, e.behindIDs = 0, 0
	if i := bytes.Index(e.suffix[:e.suffixLen], tokenIDs); i >= 0 {
		i += len(tokenIDs)
		if n := bytes.IndexByte(e.suffix[i:e.suffixLen], ']'); n > 0 {
			e.ids, e.behindIDs = i, i+n
		}
	}
}
