package workload

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/warmpath/warmpath/block"
)

// Workload is a list of requests over time. Players (the simulator and the load generator) do not change a workload, so
// several players may share it.
type Workload struct {
	Name   string // short, for tables: "conversation", "llmd-ladder"
	Source string // the spec that was passed to [Load]

	// Requests are ordered by arrival. Requests with the same arrival keep the trace's order. Requests[i].ID is i.
	Requests []Request
	// Stages divide Requests into consecutive parts; nil: none.
	Stages []Stage

	Block int      // tokens in a full block of a trace with block hashes; 0: the trace has no block hashes
	Notes []string // assumptions made while reading, such as jitter and estimated token counts; reports show them
}

// Stage is a part of a workload for which a report has separate results, such as one rate of a ladder.
type Stage struct {
	Name  string        // name in tables, such as "20 qps"
	Start time.Duration // time at which the stage begins; see Drain
	Rate  float64       // requests a second, for reports; 0: unknown
	First int           // index of the stage's first request; the stage ends before the next stage's First
	// Drain means that the stage begins only when all earlier requests have ended. If they end after Start, the arrivals
	// of this stage and of all later stages are delayed by the difference.
	Drain bool
}

// Request is one request of a workload.
type Request struct {
	ID int // index of the request in Workload.Requests
	// Arrival is the time from the workload's start at which the request is sent. If After is not negative, Arrival is
	// only a recorded or estimated time: a player sends such a request when the requests in After and Join have ended and
	// the time Think has passed.
	Arrival time.Duration

	Session int // number of the request's conversation; -1: none
	Turn    int // index of the request in its session, from 0

	// After is the index of an earlier request that must end before this request is sent. -1: none, so the request is sent
	// at Arrival.
	After int
	Join  []int         // indexes of further requests that must end before: an agent waits for its sub-agents
	Think time.Duration // pause after the end of all these requests, in which a user types or a tool runs

	Input  int // prompt tokens
	Output int // generated tokens, at least 1

	// Segments are the content of the prompt, in order. Their tokens add up to Input. If the first segments of two prompts
	// are equal (ID and Tokens), the prompts share this prefix. nil: the content is unknown, and the prompt shares no
	// prefix with other prompts.
	Segments []Segment
	// OutputSegment is the segment id of the answer. If a later prompt contains the answer, that prompt has the segment
	// {OutputSegment, Output}. 0: no later prompt contains the answer.
	OutputSegment uint64

	Model, LoRA string // "": the player's default
	Text        *Text  // the real prompt, if the trace has one
}

// Segment is a run of tokens. If two segments have the same ID, the longer segment begins with the tokens of the
// shorter segment.
type Segment struct {
	ID     uint64
	Tokens int
}

// Text is the prompt of a trace with text or token ids.
type Text struct {
	Prompt   string          // the prompt of a completions request; "" when Messages is set
	Messages json.RawMessage // the messages of a chat request, as JSON
	Tools    json.RawMessage // the tools; nil: none
	Tokens   []block.Token   // a prompt given as token ids
	Answer   string          // the recorded answer; "": not recorded
}

// AppendTokens appends the token ids of the prompt to dst. The ids are recorded ids if the trace has them, else made-up
// ids: equal segments have equal made-up ids.
func (r *Request) AppendTokens(dst []block.Token) []block.Token {
	if r.Text != nil && len(r.Text.Tokens) > 0 {
		return append(dst, r.Text.Tokens...)
	}
	for i := range r.runs() {
		dst = r.Run(i).AppendTokens(dst)
	}
	return dst
}

// AppendOutput appends made-up token ids of the answer to dst.
func (r *Request) AppendOutput(dst []block.Token) []block.Token {
	return r.Run(r.runs()).AppendTokens(dst)
}

// AppendSpan appends n made-up token ids to dst: the tokens from index from on, in the prompt followed by the answer.
// The request must not have recorded token ids.
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

// Run returns run i of the request's content. The runs are the prompt's segments and then the answer. A prompt without
// segments is one run. Run ignores recorded token ids.
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

// Made-up token ids are in [tokenBase, tokenBase+tokenSpan). Every engine accepts these ids, because they are above the
// special tokens and below 32,000, the size of the smallest common vocabulary. An id has 14 random bits, so blocks of
// different content are practically never equal.
const (
	tokenBase = 1000
	tokenSpan = 1 << 14
)

// AppendTokens appends the segment's made-up token ids to dst.
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

// fill puts tokens into dst, eight in each step, and returns the rest of dst and the new state. Speed matters here,
// because a simulation makes 10⁸ tokens.
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
	for ; n < len(dst) && v != 0; n++ { // no token is 0, so v is 0 when no token is left in v
		dst[n] = block.Token(v & 0xffff)
		v >>= 16
	}
	return n
}

// four makes four tokens from a state, in four lanes of 16 bits each. The XOR brings the upper half of the state into
// the lower half, because the upper bits are the most random.
func four(x uint64) uint64 {
	return (x^x>>32)&(lanes*(tokenSpan-1)) + lanes*tokenBase
}

// pair spreads the two lower 16-bit lanes of v to two 32-bit words, so that the compiler writes both tokens with one
// store.
func pair(v uint64) uint64 { return v&0xffff | v<<16&(0xffff<<32) }

// The product of lanes and a 16-bit number has this number in each of four lanes of 16 bits. tokenBase+tokenSpan fits
// in 16 bits, so no lane overflows.
const lanes = 1<<48 | 1<<32 | 1<<16 | 1

// The state of a segment before its token 4·n is (mix(ID) + n·Golden)·factor, so each group of four tokens adds step to
// the state.
const (
	factor = 0xbf58476d1ce4e5b9
	step   = block.Golden * factor & (1<<64 - 1)
)

// mix returns the first number of SplitMix64 with the seed v.
func mix(v uint64) uint64 { return block.Mix64(v + block.Golden) }

// These constants are the kinds of content that belong to only one request; see ownID.
const (
	ownPrompt = 1
	ownOutput = 2
)

// ownID returns a segment id for content that no other request has. what is ownPrompt or ownOutput.
func ownID(request int, what uint64) uint64 {
	return mix(mix(uint64(request)) ^ what<<56)
}
