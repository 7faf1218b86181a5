package workload

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/warmpath/warmpath/block"
)

// Workload is requests over time. It is not changed once it is played; players may share it.
type Workload struct {
	Name   string // short, for tables: "conversation", "llmd-ladder"
	Source string // the spec it came from, as [Load] takes it

	// Requests are ordered by arrival, ties in the trace's order, and Requests[i].ID is i.
	Requests []Request
	// Stages cut Requests into runs, in order; nil: none. See [Stage].
	Stages []Stage

	Block int      // tokens in a full block of the trace's hash ids; 0: the trace has none
	Notes []string // what was assumed while reading: jitter, estimated token counts; for the report's assumptions
}

// Stage is a part of a workload that is judged on its own, such as one rate of a ladder.
type Stage struct {
	Name  string        // for tables: "20 qps"
	Start time.Duration // when it begins if nothing has to be waited for
	Rate  float64       // requests a second; 0: not stated
	First int           // its first request; it ends before the next stage's First
	// Drain lets the stage begin only when all earlier requests have ended. When that is later than Start, this stage's
	// and all later arrivals move by the difference.
	Drain bool
}

// Request is one request of a workload.
type Request struct {
	ID int // its index in Workload.Requests
	// Arrival is when it is sent, since the workload's start. When After is not negative this is only the recorded or
	// estimated time: the request is sent Think after the one it follows has ended, whenever that is.
	Arrival time.Duration

	Session int // the conversation it belongs to; -1: none
	Turn    int // its place in the session, from 0

	After int           // the request that must have ended before, always an earlier one; -1: none, it arrives by the clock
	Join  []int         // others that must have ended too: an agent that waits for its sub-agents. nil mostly
	Think time.Duration // from the last end of After and Join until it is sent: a user who types, a tool that runs

	Input  int // prompt tokens
	Output int // generated tokens, at least 1

	// Segments are the prompt's content: it is their concatenation, and they sum to Input. Two prompts with equal leading
	// segments (ID and Tokens) share that content. nil: the trace says nothing of content, and the prompt is its own.
	Segments []Segment
	// OutputSegment is the id of the segment that the answer is: a later turn that contains the answer has the segment
	// {OutputSegment, Output}. 0: nothing repeats the answer.
	OutputSegment uint64

	Model, LoRA string // "": the player's default
	Text        *Text  // the real prompt, where the trace has one
}

// Segment is a run of tokens. Two segments with the same ID have the same tokens as far as both reach.
type Segment struct {
	ID     uint64
	Tokens int
}

// Text is the prompt of a trace that bears text.
type Text struct {
	Prompt   string          // for the completions dialect; "" when Messages is set
	Messages json.RawMessage // for the chat dialect, as in the trace
	Tools    json.RawMessage // nil: none
	Tokens   []block.Token   // a prompt given as token ids
	Answer   string          // what the recorded engine answered; "" when not recorded
}

// AppendTokens appends the prompt's tokens to dst: the recorded ids where the trace has them, else ids made from the
// segments, the same for the same content everywhere.
func (r *Request) AppendTokens(dst []block.Token) []block.Token {
	if r.Text != nil && len(r.Text.Tokens) > 0 {
		return append(dst, r.Text.Tokens...)
	}
	for i := range r.runs() {
		dst = r.Run(i).AppendTokens(dst)
	}
	return dst
}

// AppendOutput appends the answer's tokens to dst.
func (r *Request) AppendOutput(dst []block.Token) []block.Token {
	return r.Run(r.runs()).AppendTokens(dst)
}

// AppendSpan appends n of the tokens of the prompt and the answer behind it, from the given one on, to dst. The request must
// have no recorded ids.
func (r *Request) AppendSpan(dst []block.Token, from, n int) []block.Token {
	for i := 0; n > 0; i++ {
		s := r.Run(i)
		if from >= s.Tokens {
			from -= s.Tokens
			continue
		}
		take := min(n, s.Tokens-from)
		dst = s.appendSpan(dst, from, take)
		from, n = 0, n-take
	}
	return dst
}

// Run returns the i-th run of tokens of the prompt and the answer behind it, which is the last: the request's segments, or one of
// its own where it has none, and one for the answer. Recorded ids do not count.
func (r *Request) Run(i int) Segment {
	switch prompt := r.runs(); {
	case i < len(r.Segments):
		return r.Segments[i]
	case i < prompt:
		return Segment{ID: ownID(r.ID, ownPrompt), Tokens: r.Input}
	case i > prompt:
		panic("bug: run behind a request's answer")
	case r.OutputSegment != 0:
		return Segment{ID: r.OutputSegment, Tokens: r.Output}
	}
	return Segment{ID: ownID(r.ID, ownOutput), Tokens: r.Output}
}

// runs is how many runs the prompt is.
func (r *Request) runs() int { return max(len(r.Segments), 1) }

// Made-up token ids lie in [tokenBase, tokenBase+tokenSpan): above the special tokens and below the smallest common
// vocabulary (32,000), so that any engine takes them. 14 bits a token leave no chance to equal blocks of different content.
const (
	tokenBase = 1000
	tokenSpan = 1 << 14
)

// AppendTokens appends the segment's tokens to dst.
func (s Segment) AppendTokens(dst []block.Token) []block.Token { return s.appendSpan(dst, 0, s.Tokens) }

// appendSpan appends n of the segment's tokens, from the given one on, to dst.
func (s Segment) appendSpan(dst []block.Token, from, n int) []block.Token {
	began := len(dst)
	dst = slices.Grow(dst, n)[:began+n]
	rest := dst[began:]
	x := (mix(s.ID) + golden*uint64(from/4)) * factor
	if skip := from % 4; skip > 0 {
		x += step
		rest = rest[take(rest, four(x)>>(16*skip)):]
	}
	rest, x = fill(rest, x)
	for len(rest) > 0 {
		x += step
		rest = rest[take(rest, four(x)):]
	}
	return dst
}

// fill puts tokens into dst, eight at a time, and returns what is left of it and the state then. A simulation makes 10⁸ tokens here.
func fill(dst []block.Token, x uint64) ([]block.Token, uint64) {
	for ; len(dst) >= 8; dst = dst[8:] {
		v := four(x + step)
		x += 2 * step & (1<<64 - 1)
		u := four(x)
		a, b, c, d := pair(v), pair(v>>32), pair(u), pair(u>>32)
		r := (*[8]block.Token)(dst)
		r[0], r[1] = block.Token(a), block.Token(a>>32)
		r[2], r[3] = block.Token(b), block.Token(b>>32)
		r[4], r[5] = block.Token(c), block.Token(c>>32)
		r[6], r[7] = block.Token(d), block.Token(d>>32)
	}
	return dst, x
}

// take puts the tokens that are left in v into dst, as far as it reaches, and returns how many those were.
func take(dst []block.Token, v uint64) (n int) {
	for ; n < len(dst) && v != 0; n++ { // no token is 0
		dst[n] = block.Token(v & 0xffff)
		v >>= 16
	}
	return n
}

// four makes four tokens of a state, masked and shifted into range together: its upper half is well mixed, and is folded on the lower.
func four(x uint64) uint64 {
	return (x^x>>32)&(lanes*(tokenSpan-1)) + lanes*tokenBase
}

// pair puts the two lower tokens of four side by side as they lie in memory, which the compiler then writes at once.
func pair(v uint64) uint64 { return v&0xffff | v<<16&(0xffff<<32) }

// lanes times a number of 16 bits is four of it side by side. tokenBase+tokenSpan fits in one, so that none runs over.
const lanes = 1<<48 | 1<<32 | 1<<16 | 1

// The states of a segment are multiples of factor, a step apart.
const (
	golden = 0x9e3779b97f4a7c15
	factor = 0xbf58476d1ce4e5b9
	step   = golden * factor & (1<<64 - 1)
)

// mix is the finaliser of splitmix64: every bit of v reaches every bit of the result.
func mix(v uint64) uint64 {
	v += golden
	v = (v ^ v>>30) * 0xbf58476d1ce4e5b9
	v = (v ^ v>>27) * 0x94d049bb133111eb
	return v ^ v>>31
}

// What a request's own content is.
const (
	ownPrompt = 1
	ownOutput = 2
)

// ownID is the segment id of content that no other request has.
func ownID(request int, what uint64) uint64 {
	return mix(mix(uint64(request)) ^ what<<56)
}
