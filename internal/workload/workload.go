package workload

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/warmpath/warmpath/block"
)

// Workload is a list of requests over time. A player does not change it, so players may share it.
type Workload struct {
	Name   string // short, for tables: "conversation", "llmd-ladder"
	Source string // the spec that [Load] was given

	// Requests are ordered by arrival, ties in the trace's order, and Requests[i].ID is i.
	Requests []Request
	// Stages divide Requests into consecutive parts; nil: none.
	Stages []Stage

	Block int      // tokens of a full block of the trace's hash ids; 0: the trace has no hash ids
	Notes []string // assumptions made while reading, such as jitter and estimated token counts; reports show them
}

// Stage is a part of a workload with results of its own, such as one rate of a ladder.
type Stage struct {
	Name  string        // for tables: "20 qps"
	Start time.Duration // when the stage begins, unless it has to wait for earlier requests
	Rate  float64       // requests a second; 0: not stated
	First int           // index of the stage's first request; the stage ends before the next stage's First
	// Drain lets the stage begin only when all earlier requests have ended. When that is later than Start, the arrivals
	// of this stage and of all later ones move by the difference.
	Drain bool
}

// Request is one request of a workload.
type Request struct {
	ID int // index of the request in Workload.Requests
	// Arrival is the time of sending, from the workload's start. When After is not negative it is only the recorded or
	// estimated time: the request is sent Think after the end of the request that it follows.
	Arrival time.Duration

	Session int // the conversation that the request belongs to; -1: none
	Turn    int // the request's place in the session, from 0

	After int           // the request that must end first, always an earlier one; -1: none, Arrival counts
	Join  []int         // other requests that must end first: an agent waits for its sub-agents
	Think time.Duration // pause from the last end of After and Join: a user types, a tool runs

	Input  int // prompt tokens
	Output int // generated tokens, at least 1

	// Segments are the prompt's content, in order; their tokens sum to Input. Two prompts with equal leading segments
	// (ID and Tokens) share that content. nil: the content is unknown, and no other prompt shares it.
	Segments []Segment
	// OutputSegment is the answer's segment id. A later turn with the answer in its prompt has the segment
	// {OutputSegment, Output}. 0: no later prompt has the answer.
	OutputSegment uint64

	Model, LoRA string // "": the player's default
	Text        *Text  // the real prompt, where the trace has one
}

// Segment is a run of tokens. Two segments with the same ID have the same tokens as far as both reach.
type Segment struct {
	ID     uint64
	Tokens int
}

// Text is the prompt of a trace with text or token ids.
type Text struct {
	Prompt   string          // for the completions dialect; "" when Messages is set
	Messages json.RawMessage // for the chat dialect, as in the trace
	Tools    json.RawMessage // nil: none
	Tokens   []block.Token   // a prompt given as token ids
	Answer   string          // the recorded answer; "": not recorded
}

// AppendTokens appends the prompt's tokens to dst: the recorded ids where the trace has them, else ids that are made
// from the segments. Equal content has equal ids.
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

// AppendSpan appends n tokens of the prompt and the answer after it, beginning at index from, to dst. The request must
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

// Run returns segment i of the prompt and the answer after it: the request's segments, or one for the whole prompt
// where it has none, and last one for the answer. Recorded ids do not count.
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

// runs returns the number of the prompt's runs.
func (r *Request) runs() int { return max(len(r.Segments), 1) }

// Made-up token ids lie in [tokenBase, tokenBase+tokenSpan): above the special tokens, and below the smallest common
// vocabulary (32,000), so that every engine takes them. With 14 bits a token, blocks of different content are
// practically never equal.
const (
	tokenBase = 1000
	tokenSpan = 1 << 14
)

// AppendTokens appends the segment's tokens to dst.
func (s Segment) AppendTokens(dst []block.Token) []block.Token { return s.appendSpan(dst, 0, s.Tokens) }

// appendSpan appends n of the segment's tokens to dst, beginning at index from.
func (s Segment) appendSpan(dst []block.Token, from, n int) []block.Token {
	began := len(dst)
	dst = slices.Grow(dst, n)[:began+n]
	rest := dst[began:]
	x := (mix(s.ID) + block.Golden*uint64(from/4)) * factor
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

// fill puts tokens into dst, eight at a time. It returns the rest of dst and the new state. It is fast because a
// simulation makes 10⁸ tokens here.
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

// take puts the tokens of v into dst until either ends, and returns their number.
func take(dst []block.Token, v uint64) (n int) {
	for ; n < len(dst) && v != 0; n++ { // no token is 0: v is 0 when it is used up
		dst[n] = block.Token(v & 0xffff)
		v >>= 16
	}
	return n
}

// four makes four tokens of a state, in lanes of 16 bits. It folds the upper half of the state, which is mixed best,
// onto the lower half.
func four(x uint64) uint64 {
	return (x^x>>32)&(lanes*(tokenSpan-1)) + lanes*tokenBase
}

// pair returns the two lower tokens of four as two 32-bit words, so that the compiler writes both in one store.
func pair(v uint64) uint64 { return v&0xffff | v<<16&(0xffff<<32) }

// lanes times a 16-bit number puts that number into each of four lanes. tokenBase+tokenSpan fits in 16 bits, so no lane
// overflows.
const lanes = 1<<48 | 1<<32 | 1<<16 | 1

// The state of a segment before its token 4·n is (mix(ID) + n·Golden)·factor. It grows by step.
const (
	factor = 0xbf58476d1ce4e5b9
	step   = block.Golden * factor & (1<<64 - 1)
)

// mix returns the first number of SplitMix64 with the seed v.
func mix(v uint64) uint64 { return block.Mix64(v + block.Golden) }

// The kinds of content that belong to one request.
const (
	ownPrompt = 1
	ownOutput = 2
)

// ownID returns the segment id of content that no other request has.
func ownID(request int, what uint64) uint64 {
	return mix(mix(uint64(request)) ^ what<<56)
}
