package api

import (
	"bytes"

	"github.com/warmpath/warmpath/internal/jsonscan"
)

const (
	dataPrefix = "data:"
	doneMark   = "[DONE]"
)

// eventLines splits a stream of server-sent events into lines. Only lines that begin with "data:" matter to us; a line ends
// with LF, CR LF or CR, an event with an empty line.
type eventLines struct {
	length  int  // bytes of the current line so far
	prefix  int  // how many bytes of "data:" it has matched; -1 when it is another line
	payload int  // bytes of its payload so far
	match   int  // how many bytes of "[DONE]" the payload has matched
	open    bool // the current event has begun
	data    bool // it has a data line
	afterCR bool // the last byte was a CR: a LF now belongs to it
	done    bool // [DONE] was seen
}

// head reads a byte of the line before its payload, and reports whether the payload begins behind it.
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

// body returns what of b belongs to the line's rest, without its line end.
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

// text takes the next piece of a data line's payload and returns it without the one space that may stand before it.
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
	start := -1 // where the current event begins in chunk; -1 when it began in an earlier one
	if !l.open && !l.afterCR {
		start = 0
	}
	for i := 0; i < len(chunk); {
		if i == start {
			if n := w.plain.match(chunk[i:]); n > 0 {
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

// endEvent ends the event that began at start (-1: in an earlier chunk) and has just ended before end.
func (w *Watcher) endEvent(chunk []byte, start, end int) {
	w.json.endScalar()
	if start >= 0 {
		w.plain.learn(&w.json, chunk[start:end], start)
	}
	if w.json.generated {
		w.pieces++
	}
	if w.lines.data {
		if w.events++; w.events == 1 {
			w.begun = w.json.answers && w.json.depth == 0
		}
	}
	w.json.next()
	w.lines.open, w.lines.data = false, false
	w.failed = w.json.failed
}

// plainEvent remembers the last event that carried a piece of content and nothing else: all of it but the content. Most
// events of a stream differ from the one before in their content only, and two comparisons then tell all that reading the
// document would tell, at a tenth of the cost (BenchmarkWatcher).
type plainEvent struct {
	prefixLen, suffixLen int
	prefix               [512]byte // up to and with the quote that opens the content
	suffix               [256]byte // from the quote that closes it, with the empty line
}

// match returns the length of the plain event that b begins with, 0 when it is not one.
func (p *plainEvent) match(b []byte) int {
	if p.prefixLen == 0 || len(b) < p.prefixLen+p.suffixLen || !bytes.Equal(b[:p.prefixLen], p.prefix[:p.prefixLen]) {
		return 0
	}
	i := p.prefixLen
	for {
		n := jsonscan.PlainLen(b[i:])
		if i += n; i >= len(b) {
			return 0
		}
		switch b[i] {
		case '"':
			end := i + p.suffixLen
			if end > len(b) || !bytes.Equal(b[i:end], p.suffix[:p.suffixLen]) {
				return 0
			}
			return end
		case '\\':
			i += 2
		default: // a control character: a line may end here
			return 0
		}
		if i >= len(b) {
			return 0
		}
	}
}

// learn takes event, which begins at offset in its chunk, as the plain one if it is.
func (p *plainEvent) learn(doc *document, event []byte, offset int) {
	from, to := doc.contentStart-offset, doc.contentEnd-offset
	if !doc.plain() || from <= 0 || to <= from || from > len(p.prefix) || len(event)-to > len(p.suffix) {
		return
	}
	p.prefixLen = copy(p.prefix[:], event[:from])
	p.suffixLen = copy(p.suffix[:], event[to:])
}
