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
	inAnswer    // the answer inside an event: the message of message_start, the response of response.created
	inReason    // a choice's finish_reason, if it is an object
	inList      // the outermost array of an answer that is a list
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
	isKind      // a word that says what the document is; see kind
	isAnswer    // an object of the place inAnswer
	isOutput    // the dialect's answers have this key: a value that is not null makes the document an answer
	isID        // the id under which the engine keeps the answer
	isReason    // an object of the place inReason
	isCreatedTokens
	isElement // an element of the place inList
)

// kind is what a document says about the answer with a word such as its type.
type kind uint8

const (
	otherKind    kind = iota
	beginsAnswer      // the document is an answer or a part of one
	endsAnswer        // the document is the last part of a complete answer
	failsAnswer       // the answer failed
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
	of    *dialect

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
	answers    bool // the document has the form of an answer of the dialect; see Watcher.Answers
	ended      bool // a document of the kind endsAnswer came
	last       bool // a finish_reason was seen
	hollow     bool // a choice had no delta, message or text
	code       int  // the error's code, if it is a number
	usage      Usage
	model      [256]byte // the first model name in the response
	modelLen   int
	message    [256]byte
	messageLen int
	// created is the number of prompt tokens that went into the cache, if the usage counts them apart.
	created int
	before  Usage     // sum over the elements of a list before the present one
	id      [128]byte // the first id of the answer
	idLen   int
}

func (d *document) reset(of *dialect) {
	// Do not write *d = document{} here: the buffers need no clearing.
	d.of, d.watch = of, of.watch
	d.next()
	d.ended, d.last, d.created, d.idLen, d.before = false, false, 0, 0, Usage{}
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
	return d.tokens.Depth() == 0 && d.contents == 1 && d.choicesHere <= 1 && !d.effects && d.token
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
	case inList:
		return isElement
	}
	return nothing
}

// push enters an object or an array.
func (d *document) push(object bool) {
	p := elsewhere
	depth := d.tokens.Depth()
	switch {
	case depth == 1:
		p = d.outermost(object)
	case d.means == isElement && object:
		p = atRoot
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
		d.beginUsage()
	case d.means == isDetails && object:
		p = inDetails
	case d.means == isError && object:
		p = inError
		d.failed, d.effects = true, true
	case d.means == isAnswer && object:
		p = inAnswer
		d.effects = true
	case d.means == isReason && object:
		p = inReason
	case d.means == isOutput:
		d.answers = true
		if d.of.ends == byKind && !object {
			p = inGenerated
		}
	case d.means == isContent && !object:
		p = inGenerated
		d.answers = d.answers || d.of.root == inChoice
	case d.means == isContent || d.means == isGenerated:
		d.gotToken()
	}
	if depth <= watchedDepth {
		d.places[depth] = p
	}
	d.means = d.elementMeaning()
}

// outermost returns the place of a document's outermost value, which is an object or an array.
func (d *document) outermost(object bool) place {
	d.broken = d.broken || d.closed || !object && !d.of.lists
	d.closed = false
	switch {
	case d.of.root == inChoice && object:
		d.index, d.finish, d.filled = 0, false, true
		return inChoice
	case d.of.root == inChoice:
		return inChoices
	case object:
		return atRoot
	case d.of.lists:
		return inList
	}
	return elsewhere
}

// beginUsage begins a usage. The last usage of an answer counts, with two exceptions: a stream of messages has a part
// of the usage in its first event, and the parts of a list are added.
func (d *document) beginUsage() {
	d.effects = true
	switch {
	case d.of.split:
		d.usage.Seen = true
	case d.choicesHere > 0 && d.of.root == inChoice:
		d.before.Prompt += d.usage.Prompt
		d.before.Completion += d.usage.Completion
		d.before.Cached += d.usage.Cached
		fallthrough
	default:
		d.usage = Usage{Seen: true}
	}
}

// pop leaves a container.
func (d *document) pop() {
	depth := d.tokens.Depth() // without the container
	p := d.placeAt(depth + 1)
	d.means = nothing
	switch {
	case p == inChoice:
		if depth > 0 && d.of.root == inChoice {
			d.index = d.choicesHere // the elements of a list have no index
		}
		d.choicesHere++
		d.hollow = d.hollow || !d.filled
		d.choices.add(d.index, d.finish)
	}
	if depth == 0 && p != elsewhere {
		d.closed = true
	}
}

func (d *document) gotToken() {
	// A token outside of a content string and a list of ids (tool calls) counts as an effect, because contentEvent
	// remembers only these.
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
		d.answers = d.answers || d.of.root == inChoice
	}
}

// kept has the meanings whose strings are remembered.
var kept = [isElement + 1]bool{isFinish: true, isObject: true, isMessage: true, isModel: true, isKind: true, isID: true}

// keep remembers the beginning of a string if the string is needed: a key, or a short value with a meaning.
func (d *document) keep(b []byte) {
	d.length += len(b)
	if !d.isKey && !kept[d.means] || d.keptLen > len(d.kept) {
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
		d.finish, d.last, d.effects = true, true, true
		if s := string(d.keptString()); s == "abort" || s == "error" {
			d.aborted = true
		}
	case isError:
		d.failed, d.effects = true, true
	case isObject:
		if string(d.keptString()) == "error" {
			d.failed, d.effects = true, true
		}
	case isKind:
		d.readKind(d.of.kinds(d.keptString()))
	case isOutput:
		d.answers = true
	case isID:
		if d.idLen == 0 && d.keptLen <= len(d.id) {
			d.idLen = copy(d.id[:], d.keptString())
		}
		d.answers = true
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

// readKind records what a word says about the answer. Only the words that end an answer or fail it count as an effect,
// because each event of a stream has such a word.
func (d *document) readKind(k kind) {
	switch k {
	case beginsAnswer:
		d.answers = true
	case endsAnswer:
		d.answers, d.ended, d.effects = true, true, true
	case failsAnswer:
		d.failed, d.effects = true, true
	}
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
				d.token, d.generated = true, true // an id, which contentEvent knows
			}
		}
	case isOutput:
		d.answers = d.answers || part[0]-'0' <= 9 || part[0] == '-'
		d.means = nothing // the first byte counts, however the pieces come
	case isIndex, isPromptTokens, isCompletionTokens, isCachedTokens, isCreatedTokens, isCode:
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
	case isCreatedTokens:
		d.created = d.number
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
