package api

import (
	"math"

	"github.com/warmpath/warmpath/internal/jsonscan"
)

// place is a kind of container in a response document. A container without a place is skipped.
type place uint8

const (
	elsewhere place = iota
	atRoot
	inChoices // the list of choices
	inChoice
	inDelta // a choice's delta or message
	inUsage
	inDetails
	inError
	inGenerated // a list of generated parts, such as tool_calls or token_ids
)

// meaning says what a value means for the watcher. The dialect's watch function returns the meaning of a key in a
// place.
type meaning uint8

const (
	nothing meaning = iota
	isChoices
	isChoice
	isIndex
	isFinish
	isDelta
	isContent // a generated token, unless the value is empty or null
	isUsage
	isPromptTokens
	isCompletionTokens
	isDetails
	isCachedTokens
	isError
	isObject // the key "object" of the root: its value is "error" in errors of SGLang, and of vLLM before 0.10
	isMessage
	isGenerated // an element of the place inGenerated
	isModel     // the root's "model"
	isCode      // an error's "code"
)

// watchedDepth bounds the depth of watched places. The deepest place has depth 5: root, choices, choice, delta,
// tool_calls.
const watchedDepth = 6

// document reads a JSON document that arrives in pieces, which may be split at any byte. jsonscan.Pieces splits it into
// tokens; document knows what the keys of a response mean. Syntax errors are ignored where possible, because the
// response comes from the engine. An event stream has many documents; next is called between two of them. The results
// of all documents are kept together.
type document struct {
	watch func(in place, key []byte) meaning

	// The fields below are the position in the document.
	tokens jsonscan.Pieces
	places [watchedDepth + 1]place // the place of each open container, by depth; places[0] is unused
	isKey  bool                    // the string that is being read is a key in a watched object
	means  meaning                 // meaning of the value that is being read or comes next
	length int                     // number of bytes of the string that is being read
	kept   [256]byte               // the beginning of a key or a short value; see keep
	// keptLen is the length of the string in kept. A value above len(kept) means that the string is longer, or has
	// escapes.
	keptLen int
	number  int
	digits  bool // number has the beginning of a number that is being read

	// The fields below describe the choice that is being read.
	index  int
	finish bool
	filled bool // the choice has a delta, a message or a text

	// The fields below are the state of the current document, for contentEvent.
	contentStart, contentEnd int // position of the last content string, as offsets in the chunk
	contents, choicesHere    int
	effects                  bool // the document has more than content
	generated                bool // the document has a part of the answer

	// The fields below are about all documents of the response so far.
	choices    choiceSet
	token      bool
	failed     bool // an error was seen, perhaps in a document that is not complete yet
	aborted    bool // a finish_reason was the engine's own, abort or error
	closed     bool // the outermost object was closed
	broken     bool // there are bytes before or after the object, or no object
	answers    bool // the root has a list of choices, perhaps an empty one
	hollow     bool // a choice had no delta, message or text
	code       int  // the error's code, if it is a number
	usage      Usage
	model      [256]byte // the first model name in the response
	modelLen   int
	message    [256]byte
	messageLen int
}

func (d *document) reset(watch func(place, []byte) meaning) {
	// Do not write *d = document{} here: the buffers need no clearing.
	d.watch = watch
	d.next()
	d.choices = choiceSet{}
	d.token, d.failed, d.aborted, d.closed, d.broken, d.answers, d.hollow = false, false, false, false, false, false, false
	d.usage = Usage{}
	d.messageLen, d.modelLen, d.code = 0, 0, 0
}

// next prepares d for another document.
func (d *document) next() {
	d.tokens, d.isKey, d.means, d.digits = jsonscan.Pieces{}, false, nothing, false
	d.contentStart, d.contentEnd, d.contents, d.choicesHere, d.effects, d.generated = -1, -1, 0, 0, false, false
}

// onlyContent reports whether the current document had one choice with one piece of content, and nothing else that
// matters.
func (d *document) onlyContent() bool {
	return d.tokens.Depth() == 0 && d.contents == 1 && d.choicesHere == 1 && !d.effects && d.token
}

// feed reads the next piece. offset is the position of the piece in its chunk.
func (d *document) feed(b []byte, offset int) {
	for i := 0; i < len(b); {
		token, from, to := d.tokens.Next(b[i:])
		if token != jsonscan.Scalar || from > 0 { // otherwise the token is the next part of the same number
			d.endScalar()
		}
		from, to = i+from, i+to
		switch token {
		case jsonscan.String:
			d.beginString(offset + from + 1)
			d.keep(b[from+1 : to-1])
			d.endString(offset + to - 1)
		case jsonscan.Quote:
			d.beginString(offset + to)
		case jsonscan.Text:
			d.keep(b[from:to])
		case jsonscan.Escape:
			d.escape(b[from:to])
		case jsonscan.Control: // not valid JSON, but the response is forwarded anyway
			d.length++
		case jsonscan.Unquote:
			d.endString(offset + from)
		case jsonscan.Scalar:
			d.scalar(b[from:to])
		case jsonscan.OpenObject, jsonscan.OpenArray:
			d.push(token == jsonscan.OpenObject)
		case jsonscan.Close:
			d.pop()
		case jsonscan.Unopened:
			d.broken = true
		case jsonscan.Comma:
			d.means = d.elementMeaning()
		}
		i = to
	}
}

// place returns the place of the innermost open container.
func (d *document) place() place { return d.placeAt(d.tokens.Depth()) }

func (d *document) placeAt(depth int) place {
	if depth < 1 || depth > watchedDepth {
		return elsewhere
	}
	return d.places[depth]
}

func (d *document) elementMeaning() meaning {
	switch d.place() {
	case inChoices:
		return isChoice
	case inGenerated:
		return isGenerated
	}
	return nothing
}

// push enters an object or an array.
func (d *document) push(object bool) {
	p := elsewhere
	depth := d.tokens.Depth()
	switch {
	case depth == 1:
		d.broken = d.broken || d.closed || !object
		d.closed = false
		if object {
			p = atRoot
		}
	case d.means == isChoices && !object:
		p = inChoices
		d.answers = true
	case d.means == isChoice && object:
		p = inChoice
		d.index, d.finish, d.filled = 0, false, false
	case d.means == isDelta && object:
		p = inDelta
		d.filled = true
	case d.means == isUsage && object:
		p = inUsage
		d.usage = Usage{Seen: true}
		d.effects = true
	case d.means == isDetails && object:
		p = inDetails
	case d.means == isError && object:
		p = inError
		d.failed, d.effects = true, true
	case d.means == isContent && !object:
		p = inGenerated
	case d.means == isContent || d.means == isGenerated:
		d.gotToken()
	}
	if depth <= watchedDepth {
		d.places[depth] = p
	}
	d.means = d.elementMeaning()
}

// pop leaves a container.
func (d *document) pop() {
	depth := d.tokens.Depth() // without the container
	p := d.placeAt(depth + 1)
	d.means = nothing
	switch {
	case p == inChoice:
		d.choicesHere++
		d.hollow = d.hollow || !d.filled
		d.choices.add(d.index, d.finish)
	case p == atRoot && depth == 0:
		d.closed = true
	}
}

func (d *document) gotToken() {
	// A token outside of a content string (ids, tool calls) counts as an effect, because contentEvent only remembers
	// content strings.
	d.token, d.generated = true, true
	d.effects = true
}

func (d *document) beginString(at int) {
	if d.tokens.Depth() == 0 {
		d.broken = true
	}
	d.length, d.keptLen = 0, 0
	d.isKey = d.tokens.IsKey() && d.place() != elsewhere
	if d.isKey {
		return
	}
	if d.means == isContent {
		d.contentStart = at
	}
}

// keep remembers the beginning of a string if the string is needed: a key, or a short value with a meaning.
func (d *document) keep(b []byte) {
	d.length += len(b)
	if !d.isKey && d.means != isFinish && d.means != isObject && d.means != isMessage && d.means != isModel ||
		d.keptLen > len(d.kept) {
		return
	}
	if d.means == isMessage && !d.isKey {
		d.keptLen += copy(d.kept[d.keptLen:], b)
		return
	}
	if d.keptLen+len(b) > len(d.kept) {
		d.keptLen = len(d.kept) + 1
		return
	}
	d.keptLen += copy(d.kept[d.keptLen:], b)
}

// escape reads a byte of an escape. A message is kept together with its escapes. Known keys and short values have no
// escapes, so any other string with an escape is not kept.
func (d *document) escape(b []byte) {
	if d.means == isMessage && !d.isKey {
		d.keep(b)
		return
	}
	d.length++
	d.keptLen = len(d.kept) + 1
}

// keptString returns the string that was read last, or nil if it was not kept.
func (d *document) keptString() []byte {
	if d.keptLen > len(d.kept) {
		return nil
	}
	return d.kept[:d.keptLen]
}

func (d *document) endString(at int) {
	if d.isKey {
		d.isKey = false
		d.means = d.watch(d.place(), d.keptString())
		return
	}
	switch d.means {
	case isContent:
		d.contents++
		d.contentEnd = at
		d.filled = true
		if d.length > 0 {
			d.token, d.generated = true, true
		}
	case isGenerated:
		d.gotToken()
	case isFinish:
		d.finish, d.effects = true, true
		if s := string(d.keptString()); s == "abort" || s == "error" {
			d.aborted = true
		}
	case isError:
		d.failed, d.effects = true, true
	case isObject:
		if string(d.keptString()) == "error" {
			d.failed, d.effects = true, true
		}
	case isModel:
		if d.modelLen == 0 {
			d.modelLen = copy(d.model[:], d.keptString())
		}
	case isMessage:
		d.messageLen = copy(d.message[:], d.kept[:min(d.keptLen, len(d.kept))])
		d.effects = true
	}
	d.means = nothing
}

// scalar reads a part of a number or a literal.
func (d *document) scalar(part []byte) {
	if d.tokens.Depth() == 0 {
		d.broken = true
	}
	switch d.means {
	case isGenerated:
		for _, c := range part {
			if c-'0' <= 9 {
				d.gotToken()
			}
		}
	case isIndex, isPromptTokens, isCompletionTokens, isCachedTokens, isCode:
		for _, c := range part {
			if c -= '0'; c > 9 {
				d.means, d.digits = nothing, false // the value is null, or is not a count
				return
			}
			if !d.digits {
				d.number, d.digits = 0, true
			}
			if d.number < math.MaxInt32/10 {
				d.number = d.number*10 + int(c)
			}
		}
	}
}

// endScalar ends a number, if one is being read.
func (d *document) endScalar() {
	if !d.digits {
		return
	}
	d.digits = false
	switch d.means {
	case isIndex:
		d.index = d.number
	case isPromptTokens:
		d.usage.Prompt = d.number
	case isCompletionTokens:
		d.usage.Completion = d.number
	case isCachedTokens:
		d.usage.Cached, d.usage.HasCached = d.number, true
	case isCode:
		d.code = d.number
	}
	d.means = nothing
}

// choiceSet remembers which choices have been seen and which have finished.
type choiceSet struct {
	seen, done [2]uint64 // bits by index, for indexes below 128
	highest    int       // highest index that was seen
	doneAbove  int       // number of finished choices with an index of 128 or more; each choice finishes once
}

func (c *choiceSet) add(index int, finished bool) {
	c.highest = max(c.highest, index)
	if index >= 128 {
		if finished {
			c.doneAbove++
		}
		return
	}
	c.seen[index>>6] |= 1 << (index & 63)
	if finished {
		c.done[index>>6] |= 1 << (index & 63)
	}
}

func (c *choiceSet) finished() bool {
	return c.done != [2]uint64{} && c.done == c.seen && c.doneAbove >= c.highest-127
}
