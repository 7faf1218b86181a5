package sim

import (
	"bytes"
	"cmp"
	"container/heap"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/report"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/internal/workload"
	"github.com/warmpath/warmpath/policy"
)

// Replay asks policies about the recorded decisions of a decision log. Each decision is asked about alone: the policy
// sees the caches and the load as they were then, as the recorded policy left them. So a replay says where a policy
// would decide differently, and what it would expect there. It does not say how the fleet would develop: for that, play
// the log as a workload (format decisions).
//
// Add the lines in the order of the files. Memory does not grow with the number of lines. A Replay belongs to one
// goroutine.
type Replay struct {
	policies []*replayed
	waiting  lineHeap // lines by the time of their decision
	recorded ReplayedPolicy
	measured Measured
	out      ReplayResult

	workers map[string]*fleet.Worker
	holders map[string]fleet.Holder // by worker and rank
	first   report.Histogram        // measured times to the first token
	known   report.Histogram        // predicted times to the first token at the recorded worker
}

// ReplayResult is what a replay found.
type ReplayResult struct {
	Decisions int64     `json:"decisions"`
	LeftOut   int64     `json:"left_out"` // lines without the facts of a decision
	From      time.Time `json:"from"`
	To        time.Time `json:"to"`
	// Recorded are the recorded decisions, with the same predictions as those of Policies. Measured is what the engines
	// then reported.
	Recorded ReplayedPolicy   `json:"recorded"`
	Measured Measured         `json:"measured"`
	Policies []ReplayedPolicy `json:"policies"`
}

// ReplayedPolicy sums up the decisions of one policy.
type ReplayedPolicy struct {
	Policy string `json:"policy"`
	// Other counts decisions for another holder than the recorded one, and None those for no holder.
	Other int64 `json:"other"`
	None  int64 `json:"none"`
	// PromptTokens and PredictedTokens are the tokens of all prompts, and those that were expected to be cached.
	PromptTokens    int64 `json:"prompt_tokens"`
	PredictedTokens int64 `json:"predicted_tokens"`
	// FirstToken is the predicted time from the decision to the first token: the backlog of the holder and the
	// computation of what is not cached.
	FirstToken report.Latency `json:"first_token"`
	// Busiest is the share of the uncached tokens at the holder that gets most of them.
	Busiest float64 `json:"busiest_share"`
}

// Measured is what engines and the router measured for the recorded decisions.
type Measured struct {
	Reports        int64          `json:"reports"` // answers with a number of cached tokens
	PromptTokens   int64          `json:"prompt_tokens"`
	ReportedTokens int64          `json:"reported_tokens"`
	FirstToken     report.Latency `json:"first_token"` // from the request's head, of streamed answers
}

// replayed is a policy that is asked.
type replayed struct {
	policy *policy.Policy
	sum    ReplayedPolicy
	first  report.Histogram
	work   map[fleet.Holder]int64 // uncached tokens
	ends   endHeap                // requests that the policy takes for unfinished
	turns  map[string]uint64      // by base model
}

// reorder is how many lines a replay holds to bring them into the order of their decisions: a line is written when its
// request ends. A request that takes longer than 4,096 others is asked about late.
const reorder = 4096

// NewReplay returns a replay of these policies. An error names a policy that cannot be asked.
func NewReplay(specs []policy.Spec) (*Replay, error) {
	r := &Replay{workers: map[string]*fleet.Worker{}, holders: map[string]fleet.Holder{}}
	for _, spec := range specs {
		if spec.Learned != nil {
			return nil, fmt.Errorf("policy %q guesses caches from the requests that it sent itself: use warmpath sim --workload decisions:FILE", spec.Name)
		}
		p, err := policy.Build(spec)
		if err != nil {
			return nil, err
		}
		r.policies = append(r.policies, &replayed{policy: p, sum: ReplayedPolicy{Policy: spec.Name}, work: map[fleet.Holder]int64{}, turns: map[string]uint64{}})
	}
	if len(r.policies) == 0 {
		return nil, errors.New("no policy is given")
	}
	return r, nil
}

// Limits of a line that a router would not exceed.
const (
	maxReplayCandidates = 4096
	maxReplayPrompt     = 1 << 26
	maxReplayTransfer   = 1e9 // milliseconds
)

// ErrCut is the error about a line that ends before its last brace, such as the last line of a file that a router still
// writes, or the last one before a crash.
var ErrCut = errors.New("the line is cut short")

// ReadDecided reads one line of a decision log.
func ReadDecided(text []byte) (*telemetry.Decided, error) {
	line := &telemetry.Decided{}
	if err := json.Unmarshal(text, line); err != nil {
		if text = bytes.TrimSpace(text); len(text) > 0 && text[0] == '{' && text[len(text)-1] != '}' {
			return nil, ErrCut
		}
		return nil, fmt.Errorf("not a line of a decision log: %w", err)
	}
	c := line.Choice
	if c == nil {
		return line, nil
	}
	switch {
	case c.Prompt < 0 || c.Prompt > maxReplayPrompt:
		return nil, fmt.Errorf("prompt: %d tokens", c.Prompt)
	case c.BlockSize < 0 || c.BlockSize > maxReplayPrompt:
		return nil, fmt.Errorf("block_size: %d tokens", c.BlockSize)
	case c.BlockSize > 0 && len(c.Keys)/11 > c.Prompt/c.BlockSize+1:
		return nil, fmt.Errorf("keys: more than a prompt of %d tokens has", c.Prompt)
	}
	err := checkChoice(c.Candidates, c.Chosen)
	if c.Prefill != nil && err == nil {
		if err = checkChoice(c.Prefill.Candidates, c.Prefill.Chosen); err != nil {
			err = fmt.Errorf("prefill: %w", err)
		}
	}
	if err != nil {
		return nil, err
	}
	return line, nil
}

// checkChoice checks the candidates of a leg and the index of the chosen one.
func checkChoice(candidates []telemetry.Candidate, chosen int) error {
	switch {
	case len(candidates) == 0 || len(candidates) > maxReplayCandidates:
		return fmt.Errorf("%d candidates", len(candidates))
	case chosen < 0 || chosen >= len(candidates):
		return fmt.Errorf("chosen: there is no candidate %d", chosen)
	}
	for i := range candidates {
		x := &candidates[i]
		if x.Worker == "" || x.Rank < 0 || x.Bar > fleet.BarSuspect || min(x.BlockSize, x.Match, x.Predicted, x.Active, x.AtRisk, x.Full, x.Fetched) < 0 ||
			max(x.BlockSize, x.Match, x.Predicted, x.Active, x.Full, x.Fetched) > maxReplayPrompt || x.AtRisk > x.Predicted || !(x.TransferMS >= 0 && x.TransferMS <= maxReplayTransfer) {
			return fmt.Errorf("candidate %d has impossible figures", i)
		}
	}
	return nil
}

// Add takes one line. It keeps line until later lines were added.
func (r *Replay) Add(line *telemetry.Decided) {
	if line.Choice == nil {
		r.out.LeftOut++
		return
	}
	heap.Push(&r.waiting, line)
	if r.waiting.Len() > reorder {
		r.play(heap.Pop(&r.waiting).(*telemetry.Decided))
	}
}

// Result asks about the lines that still wait, and returns what was found.
func (r *Replay) Result() *ReplayResult {
	for r.waiting.Len() > 0 {
		r.play(heap.Pop(&r.waiting).(*telemetry.Decided))
	}
	out := r.out
	out.Recorded, out.Measured = r.recorded, r.measured
	out.Recorded.FirstToken, out.Measured.FirstToken = r.known.Latency(false), r.first.Latency(false)
	for _, p := range r.policies {
		sum := p.sum
		sum.FirstToken = p.first.Latency(false)
		all, most := int64(0), int64(0)
		for _, n := range p.work {
			all, most = all+n, max(most, n)
		}
		if all > 0 {
			sum.Busiest = float64(most) / float64(all)
		}
		out.Policies = append(out.Policies, sum)
	}
	return &out
}

// play asks all policies about one decision.
func (r *Replay) play(line *telemetry.Decided) {
	c := line.Choice
	r.out.Decisions++
	if at := time.Unix(0, c.At); r.out.From.IsZero() || at.Before(r.out.From) {
		r.out.From = at
	}
	if at := time.Unix(0, c.At); at.After(r.out.To) {
		r.out.To = at
	}
	q := r.query(c)
	legs := r.legs(c)
	r.measure(line, legs, q.PromptTokens)
	for _, p := range r.policies {
		own := q
		own.Turn = p.turns[c.Base]
		p.turns[c.Base]++
		p.ask(&own, legs, line)
	}
}

// replayedLeg is the choice of one worker of a decision. A divided request has two.
type replayedLeg struct {
	leg        fleet.Leg
	candidates []policy.Candidate
	chosen     int // by the recorded policy
}

// legs returns the legs of a decision in their order. The first one computes the prompt.
func (r *Replay) legs(c *telemetry.Choice) []replayedLeg {
	candidates, chosen := r.candidates(c.Candidates, c.Chosen)
	last := replayedLeg{fleet.LegWhole, candidates, chosen}
	if c.Prefill == nil {
		return []replayedLeg{last}
	}
	last.leg = fleet.LegDecode
	candidates, chosen = r.candidates(c.Prefill.Candidates, c.Prefill.Chosen)
	return []replayedLeg{{fleet.LegPrefill, candidates, chosen}, last}
}

// ask lets the policy choose a worker for each leg, and tells it how the request went. The candidates of a decode leg
// have the transfers from the recorded worker of the prefill leg.
func (p *replayed) ask(q *policy.Query, legs []replayedLeg, line *telemetry.Decided) {
	for len(p.ends) > 0 && p.ends[0].Now <= q.Now {
		f := heap.Pop(&p.ends).(policy.Finished)
		p.policy.Finished(&f)
	}
	p.sum.PromptTokens += int64(q.PromptTokens)
	var chosen []*policy.Candidate
	other := false
	for i := range legs {
		l := &legs[i]
		candidates := slices.Clone(l.candidates)
		q.Leg = l.leg
		choice := p.policy.Choose(q, candidates)
		if choice.Index < 0 {
			p.sum.None++
			return
		}
		chosen = append(chosen, &candidates[choice.Index])
		other = other || chosen[i].Holder != l.candidates[l.chosen].Holder
	}
	if other {
		p.sum.Other++
	}
	c := chosen[0]
	kept := min(c.Kept(), q.PromptTokens)
	p.sum.PredictedTokens += int64(kept)
	p.work[c.Holder] += int64(max(q.PromptTokens-kept-c.Fetched, 0))
	p.first.Add(firstToken(chosen, q.PromptTokens))
	for i, c := range chosen {
		q.Leg = legs[i].leg
		p.policy.Routed(q, c)
		heap.Push(&p.ends, finishedLeg(q, c, line))
	}
}

// finishedLeg is the end of the leg q.Leg at c. A prefill leg ends when the answer begins, because its own end is not
// recorded.
func finishedLeg(q *policy.Query, c *policy.Candidate, line *telemetry.Decided) policy.Finished {
	end := policy.Finished{Holder: c.Holder, Model: q.Model, Class: q.Class, Outcome: fleet.OutcomeServed, RoutedAt: q.Now,
		Now: max(line.Time.UnixNano()+int64(line.TotalMS*1e6), q.Now), UncachedTokens: max(q.PromptTokens-c.Kept(), 0)}
	if line.FirstTokenMS > 0 {
		end.FirstTokenAt = line.Time.UnixNano() + int64(line.FirstTokenMS*1e6)
	}
	if q.Leg == fleet.LegPrefill {
		end.Now = max(end.FirstTokenAt, q.Now)
		return end
	}
	if line.OutputTokens != nil {
		end.OutputTokens = *line.OutputTokens
	}
	return end
}

// firstToken predicts the time from the decision to the first token at the chosen candidates of the legs.
func firstToken(chosen []*policy.Candidate, prompt int) time.Duration {
	c := chosen[0]
	timing := c.Load.Timing
	if timing == (fleet.Timing{}) {
		timing = fleet.DefaultTiming
	}
	ms := timing.Prompt(max(prompt-c.Kept()-c.Fetched, 1), prompt)
	for _, c := range chosen {
		ms += c.Transfer
	}
	return c.Load.Backlog + time.Duration(ms*1e6)
}

// measure records what the recorded decision predicted, and what was measured afterwards.
func (r *Replay) measure(line *telemetry.Decided, legs []replayedLeg, prompt int) {
	var chosen []*policy.Candidate
	for i := range legs {
		chosen = append(chosen, &legs[i].candidates[legs[i].chosen])
	}
	r.recorded.Policy = line.Policy
	r.recorded.PromptTokens += int64(prompt)
	r.recorded.PredictedTokens += int64(min(chosen[0].Kept(), prompt))
	r.known.Add(firstToken(chosen, prompt))
	if n := line.ReportedTokens; n != nil && line.PromptTokens > 0 {
		r.measured.Reports++
		r.measured.PromptTokens += int64(line.PromptTokens)
		r.measured.ReportedTokens += int64(*n)
	}
	if line.Stream && line.FirstTokenMS > 0 {
		r.first.Add(time.Duration(line.FirstTokenMS * 1e6))
	}
}

// query returns the query of a recorded decision. The tokens and the text of the prompt are made up: equal blocks have
// equal ones.
func (r *Replay) query(c *telemetry.Choice) policy.Query {
	q := policy.Query{
		PromptTokens: c.Prompt, Known: c.Known, Target: c.Target, Rank: -1, MaxRequests: c.MaxRequests, Random: c.Random,
		Model: c.Base, LoRA: c.LoRA, Session: policy.Session{Key: c.Session}, Now: c.At, Arrived: c.Arrived, Class: c.Class,
	}
	if c.Rank != nil {
		q.Rank = *c.Rank
	}
	for _, url := range c.Tried {
		q.Exclude = append(q.Exclude, r.worker(url).ID)
	}
	for _, text := range c.Levels {
		if levels, err := fleet.ParseServiceLevels(text); err == nil {
			q.Levels = append(q.Levels, levels...)
		}
	}
	q.Levels = q.Levels[:min(len(q.Levels), fleet.MaxServiceLevels)]
	if keys, err := telemetry.AppendKeys(nil, c.Keys); err == nil && len(keys) > 0 && c.BlockSize > 0 {
		q.Prompt = policy.Prompt{Keys: keys, BlockSize: c.BlockSize, Tokens: madeUp(keys, c)}
		for _, token := range q.Prompt.Tokens {
			q.Prompt.Text = append(q.Prompt.Text, byte('a'+token%16), byte('a'+token>>4%16), byte('a'+token>>8%16), byte('a'+token>>12%16))
		}
	}
	return q
}

// madeUp returns token ids in place of those of the prompt: equal blocks have equal ids, and what follows the last
// whole block is unlike all other prompts.
func madeUp(keys []block.Key, c *telemetry.Choice) []block.Token {
	tokens := make([]block.Token, 0, c.Prompt)
	for _, k := range keys {
		if len(tokens)+c.BlockSize > c.Prompt {
			break
		}
		tokens = workload.Segment{ID: uint64(k), Tokens: c.BlockSize}.AppendTokens(tokens)
	}
	return workload.Segment{ID: c.Random, Tokens: c.Prompt - len(tokens)}.AppendTokens(tokens)
}

// candidates returns recorded candidates in the order in which the router offered them, and the index of the chosen
// one.
func (r *Replay) candidates(recorded []telemetry.Candidate, chosenThere int) (list []policy.Candidate, chosen int) {
	order := make([]int, len(recorded))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(recorded[a].Holder, recorded[b].Holder) })
	list = make([]policy.Candidate, len(order))
	for to, from := range order {
		if from == chosenThere {
			chosen = to
		}
		x := &recorded[from]
		list[to] = policy.Candidate{
			Worker: r.worker(x.Worker), Holder: r.holder(x.Worker, x.Rank), Rank: x.Rank, Hash: x.Hash, Trust: fleet.ParseTrust(x.Trust),
			Available: !x.Down, Bar: x.Bar, Withheld: x.Withheld, Load: x.Load.Fleet(), BlockSize: x.BlockSize,
			Match: x.Match, Predicted: x.Predicted, Active: x.Active, AtRisk: x.AtRisk, Full: x.Full,
			Fetched: x.Fetched, Transfer: x.TransferMS, Unpaired: x.Unpaired,
		}
		if x.Source != "" {
			list[to].Source = r.worker(x.Source)
		}
		if x.Down && x.Bar != fleet.BarLimited {
			list[to].Bar = fleet.BarUnavailable
		}
		for t := range list[to].Tier {
			list[to].Tier[t] = min(max(x.Tiers[block.Tier(t).String()], 0), x.Match)
		}
	}
	return list, chosen
}

func (r *Replay) worker(url string) *fleet.Worker {
	w := r.workers[url]
	if w == nil {
		w = &fleet.Worker{ID: fleet.WorkerID(len(r.workers)), URL: url, Healthy: true, Ready: true}
		r.workers[url] = w
	}
	return w
}

func (r *Replay) holder(url string, rank int) fleet.Holder {
	key := fmt.Sprint(url, "\x00", rank)
	h, ok := r.holders[key]
	if !ok {
		h = fleet.Holder(len(r.holders))
		r.holders[key] = h
	}
	return h
}

// lineHeap has lines, the earliest decision first.
type lineHeap []*telemetry.Decided

// Len returns the number of lines.
func (h lineHeap) Len() int { return len(h) }

// Less reports whether line i was decided before line j.
func (h lineHeap) Less(i, j int) bool { return h[i].Choice.At < h[j].Choice.At }

// Swap exchanges two lines.
func (h lineHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push appends a line.
func (h *lineHeap) Push(x any) { *h = append(*h, x.(*telemetry.Decided)) }

// Pop removes the last line.
func (h *lineHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// endHeap has the ends of requests, the earliest first.
type endHeap []policy.Finished

// Len returns the number of ends.
func (h endHeap) Len() int { return len(h) }

// Less reports whether end i is before end j.
func (h endHeap) Less(i, j int) bool { return h[i].Now < h[j].Now }

// Swap exchanges two ends.
func (h endHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push appends an end.
func (h *endHeap) Push(x any) { *h = append(*h, x.(policy.Finished)) }

// Pop removes the last end.
func (h *endHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
