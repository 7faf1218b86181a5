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

	// Requests are ordered by arrival; at the same time they keep the trace's order. Requests[i].ID is i.
	Requests []Request
	// Stages divide Requests into consecutive parts; nil: none.
	Stages []Stage

	Block int      // number of tokens of a full block, for a trace with hash ids; 0: the trace has no hash ids
	Notes []string // assumptions made while reading, such as jitter and estimated token counts; reports show them
}

// Stage is a part of a workload for which a report has separate results, such as one rate of a ladder.
type Stage struct {
	Name  string        // name in tables, such as "20 qps"
	Start time.Duration // when the stage begins, unless it has to wait for earlier requests
	Rate  float64       // requests a second; 0: not stated
	First int           // index of the stage's first request; the stage ends before the next stage's First
	// Drain lets the stage begin only when all earlier requests have ended. If that is later than Start, the arrivals
	// of this stage and of all later stages move by the difference.
	Drain bool
}

// Request is one request of a workload.
type Request struct {
	ID int // index of the request in Workload.Requests
	// Arrival is the time at which the request is sent, from the workload's start. If After is not negative, it is only
	// the recorded or estimated time: in this case the request is sent the time Think after the end of the request that
	// it follows.
	Arrival time.Duration

	Session int // the conversation that the request belongs to; -1: none
	Turn    int // the request's place in the session, from 0

	// index of the request that must end first, always an earlier request; -1: none, so Arrival decides
	After int
	Join  []int         // indexes of other requests that must end first: an agent waits for its sub-agents
	Think time.Duration // pause after the last end of After and Join, in which a user types or a tool runs

	Input  int // prompt tokens
	Output int // generated tokens, at least 1

	// Segments are the content of the prompt, in order. Their tokens add up to Input. Two prompts whose leading
	// segments are equal (ID and Tokens) have this content in common. nil: the content is unknown, and no other prompt
	// shares it.
	Segments []Segment
	// OutputSegment is the segment id of the answer. A later turn whose prompt contains the answer has the segment
	// {OutputSegment, Output}. 0: no later prompt contains the answer.
	OutputSegment uint64

	Model, LoRA string // "": the player's default
	Text        *Text  // the real prompt, if the trace has one
}

// Segment is a run of tokens. If two segments have the same ID, the tokens of the shorter one are the beginning of the
// longer one.
type Segment struct {
	ID     uint64
	Tokens int
}

// Text is the prompt of a trace with text or token ids.
type Text struct {
	Prompt   string          // the prompt for the completions dialect; "" when Messages is set
	Messages json.RawMessage // the messages for the chat dialect, as in the trace
	Tools    json.RawMessage // the tools; nil: none
	Tokens   []block.Token   // a prompt given as token ids
	Answer   string          // the recorded answer; "": not recorded
}

// AppendTokens appends the prompt's tokens to dst. These are the recorded ids if the trace has ids, else ids that are
// made from the segments. Equal content has equal ids.
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

// AppendSpan appends n tokens to dst. It takes them from the prompt followed by the answer, beginning at index from.
// The request must not have recorded ids.
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

// Run returns run i of the request's content, which is the prompt followed by the answer. The prompt's runs are its
// segments, or one run for the whole prompt if it has no segments. The last run is the answer. Run ignores recorded
// ids.
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

// Made-up token ids are in [tokenBase, tokenBase+tokenSpan). These ids are above the special tokens, and below the
// smallest common vocabulary (32,000), so that every engine accepts them. A token has 14 random bits, so blocks of
// different content are practically never equal.
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

// fill puts tokens into dst, eight at a time. It returns the rest of dst and the new state. It must be fast, because a
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

// take puts the tokens of v into dst until dst is full or v has no more tokens, and returns their number.
func take(dst []block.Token, v uint64) (n int) {
	for ; n < len(dst) && v != 0; n++ { // no token is 0, so v is 0 when all its tokens are taken
		dst[n] = block.Token(v & 0xffff)
		v >>= 16
	}
	return n
}

// four makes four tokens of a state, in lanes of 16 bits. It folds the upper half of the state onto the lower half,
// because the upper half is mixed best.
func four(x uint64) uint64 {
	return (x^x>>32)&(lanes*(tokenSpan-1)) + lanes*tokenBase
}

// pair returns the two lower tokens of four as two 32-bit words, so that the compiler writes both in one store.
func pair(v uint64) uint64 { return v&0xffff | v<<16&(0xffff<<32) }

// lanes multiplied by a 16-bit number puts that number into each of four lanes. tokenBase+tokenSpan fits in 16 bits, so
// no lane overflows.
const lanes = 1<<48 | 1<<32 | 1<<16 | 1

// The state of a segment before its token 4·n is (mix(ID) + n·Golden)·factor. For each four tokens the state grows by
// step.
const (
	factor = 0xbf58476d1ce4e5b9
	step   = block.Golden * factor & (1<<64 - 1)
)

// mix returns the first number of SplitMix64 with the seed v.
func mix(v uint64) uint64 { return block.Mix64(v + block.Golden) }

// These are the kinds of content that belong to only one request.
const (
	ownPrompt = 1
	ownOutput = 2
)

// ownID returns the segment id of content that no other request has.
func ownID(request int, what uint64) uint64 {
	return mix(mix(uint64(request)) ^ what<<56)
}
