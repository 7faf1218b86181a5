package workload

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// agentRow is a row of an agent trace, in one of two formats.
type agentRow struct {
	// The next four fields belong to the format of LMCache's lmcache-agent-trace. A row is one call of a model, with
	// prompt, answer and a time in microseconds.
	Timestamp float64 `json:"timestamp"`
	Input     *string `json:"input"`
	Output    string  `json:"output"`
	Session   string  `json:"session_id"`

	// Event belongs to the format dynamo.request.trace.v1. The reader uses only events that record the end of a request.
	Event *dynamoEvent `json:"event"`
}

type dynamoEvent struct {
	Type    string `json:"event_type"`
	Context struct {
		Session string `json:"session_id"`
		Parent  string `json:"parent_session_id"`
	} `json:"agent_context"`
	Request struct {
		Input    int     `json:"input_tokens"`
		Output   int     `json:"output_tokens"`
		Received float64 `json:"request_received_ms"`
		Total    float64 `json:"total_time_ms"`
		Replay   struct {
			Block  int      `json:"trace_block_size"`
			Hashes []uint64 `json:"input_sequence_hashes"`
		} `json:"replay"`
	} `json:"request"`
}

// readAgent reads agent sessions as closed loops: a session makes its next call after the previous answer has ended and
// a tool has run.
func readAgent(b *builder, l *lines) error {
	var calls []agentCall
	text := false
	err := l.each(func(line []byte) error {
		var row agentRow
		if err := json.Unmarshal(line, &row); err != nil {
			return err
		}
		switch {
		case row.Event != nil:
			if row.Event.Type != "request_end" {
				return nil
			}
			call, err := b.addCall(row.Event)
			if call != nil {
				calls = append(calls, *call)
			}
			return err
		case row.Input == nil:
			return errors.New("neither input (LMCache) nor event (Dynamo) is there")
		}
		text = true
		return b.addText(&row)
	})
	if err != nil && !errors.Is(err, errEnough) {
		return err
	}
	if text && len(calls) > 0 {
		return fmt.Errorf("%w: LMCache and Dynamo rows are mixed", errWhole)
	}
	if text {
		b.note(textNote)
		b.note("the pauses of agents are the recorded gaps less the recorded engine's time, which is estimated")
		b.followSessions(recordedService)
		return nil
	}
	b.followCalls(calls)
	return nil
}

// addText adds a call of LMCache's trace with its text, so that a player can send the real prompt.
func (b *builder) addText(row *agentRow) error {
	r := b.request()
	var err error
	if r.Arrival, err = seconds(row.Timestamp / 1e6); err != nil {
		return fmt.Errorf("timestamp: %w", err)
	}
	if row.Session != "" {
		r.Session, _ = b.session(row.Session)
	}
	r.Input, r.Output = textTokens(len(*row.Input)), textTokens(len(row.Output))
	r.Segments = textSegments([]byte(*row.Input))
	r.Text = &Text{Prompt: *row.Input, Answer: row.Output}
	return b.add(r)
}

// recordedService estimates how long the engine that recorded LMCache's traces took for a request. The estimate comes
// from sessions without tools: there the next call begins 0.2 s after the previous call's beginning, plus 1 s for each
// 150 answer tokens.
func recordedService(r *Request) time.Duration {
	return 200*time.Millisecond + time.Duration(r.Output)*time.Second/150
}

// agentCall is one call in Dynamo's trace. session names the agent that made the call. parent names the agent that
// started this agent; "": it is a root agent. followCalls uses names and times to find the calls for which a call
// waited.
type agentCall struct {
	request         int // index of the request in the builder
	session, parent string
	start, end      time.Duration
}

func (b *builder) addCall(e *dynamoEvent) (*agentCall, error) {
	q := &e.Request
	block := cmp.Or(q.Replay.Block, 16)
	if block < 1 || block > MaxTokens || b.w.Block != 0 && block != b.w.Block {
		return nil, fmt.Errorf("trace_block_size %d: want one positive size for all rows", block)
	}
	b.w.Block = block
	r := b.request()
	var err error
	if r.Arrival, err = seconds(q.Received / 1000); err != nil {
		return nil, fmt.Errorf("request_received_ms: %w", err)
	}
	took, err := seconds(q.Total / 1000)
	if err != nil {
		return nil, fmt.Errorf("total_time_ms: %w", err)
	}
	r.Input, r.Output = q.Input, q.Output
	if r.Segments, err = hashSegments(q.Replay.Hashes, q.Input, block); err != nil {
		return nil, err
	}
	// A root agent and the sub-agents that it started itself are one session, because they work for one user.
	r.Session, _ = b.session(rootSession(e))
	before := len(b.w.Requests)
	err = b.add(r)
	if len(b.w.Requests) == before {
		return nil, err
	}
	return &agentCall{
		request: before, session: e.Context.Session, parent: e.Context.Parent,
		start: r.Arrival, end: r.Arrival + max(took, 0),
	}, err
}

func rootSession(e *dynamoEvent) string {
	return strings.TrimSpace(cmp.Or(e.Context.Parent, e.Context.Session))
}

// followCalls sorts the requests by the start of their calls, and finds the earlier calls for which each call waited. A
// call waited for the last call of the same agent that had ended before. It also waited for the last call of each
// sub-agent, if this call ended between the two. If no call of the agent had ended before, the call waited for the last
// call of the parent that had ended. The call that ended last becomes After, and the others become Join.
func (b *builder) followCalls(calls []agentCall) {
	if len(calls) == 0 {
		return
	}
	slices.SortStableFunc(calls, func(a, b agentCall) int { return cmp.Compare(a.start, b.start) })
	sorted := make([]Request, len(calls))
	f := family{calls: calls, of: map[string][]int{}, children: map[string][]string{}}
	for i := range calls {
		sorted[i] = b.w.Requests[calls[i].request]
		sorted[i].ID = i
		waited := f.awaited(i)
		f.add(i)
		if len(waited) == 0 {
			continue
		}
		last := waited[0]
		for _, j := range waited {
			if calls[j].end > calls[last].end {
				last = j
			}
		}
		sorted[i].After = last
		sorted[i].Think = max(0, calls[i].start-calls[last].end)
		for _, j := range waited {
			if j != last {
				sorted[i].Join = append(sorted[i].Join, j)
			}
		}
	}
	b.w.Requests = sorted
}

// family indexes the calls by agent, and the sub-agents by their parent.
type family struct {
	calls    []agentCall
	of       map[string][]int    // by agent: indexes of the agent's calls, in the order of their starts
	children map[string][]string // by agent: names of the agent's sub-agents
}

// add indexes call i, so that later calls can find it.
func (f *family) add(i int) {
	c := &f.calls[i]
	if len(f.of[c.session]) == 0 && c.parent != "" {
		f.children[c.parent] = append(f.children[c.parent], c.session)
	}
	f.of[c.session] = append(f.of[c.session], i)
}

// last returns the index of the agent's last call that ended at or before the time by, or -1.
func (f *family) last(agent string, by time.Duration) int {
	own := f.of[agent]
	for i := len(own) - 1; i >= 0; i-- {
		if f.calls[own[i]].end <= by {
			return own[i]
		}
	}
	return -1
}

// awaited returns the indexes of the calls for which call i waited. It knows only calls that add has indexed.
func (f *family) awaited(i int) []int {
	me := &f.calls[i]
	own := f.last(me.session, me.start)
	if own < 0 {
		if me.parent == "" {
			return nil
		}
		if parent := f.last(me.parent, me.start); parent >= 0 {
			return []int{parent}
		}
		return nil
	}
	waited := []int{own}
	for _, child := range f.children[me.session] {
		if j := f.last(child, me.start); j >= 0 && f.calls[j].end > f.calls[own].end {
			waited = append(waited, j)
		}
	}
	slices.Sort(waited[1:])
	return waited
}
