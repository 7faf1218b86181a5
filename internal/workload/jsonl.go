package workload

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/warmpath/warmpath/block"
)

// FormatDoc describes Warmpath's own format, for the command's help.
const FormatDoc = `One JSON object a line. The first line may be a header:

  {"warmpath":1,"name":"my trace","block":16,"notes":["…"],"stages":[{"name":"10 qps","start":0,"rate":10,"first":0,"drain":true}]}

Every other line is a request; unknown fields are errors:

  at        seconds since the start (default: as the line before)
  input     prompt tokens; not needed with segments or tokens, estimated with prompt or messages
  output    generated tokens, at least 1
  segments  [[id, tokens], …]: the prompt's content; equal leading pairs are equal content
  answer    id of the segment that the answer is, when a later prompt repeats it as [answer, output]
  id        name of this request for others to refer to (default: its number, from "0")
  after     id of the request that it follows, an earlier line: it is sent "think" seconds after that one has ended
  join      [ids]: others that must have ended too
  think     seconds
  session   name of the conversation
  model, lora
  prompt    text, or   messages [, tools]   of a chat, or   tokens [ids]
  recorded  the answer's text, as recorded
`

// header is the first line of a file if this line contains "warmpath".
type header struct {
	Version int          `json:"warmpath"`
	Name    string       `json:"name,omitempty"`
	Block   int          `json:"block,omitempty"`
	Notes   []string     `json:"notes,omitempty"`
	Stages  []stageEntry `json:"stages,omitempty"`
}

type stageEntry struct {
	Name  string  `json:"name"`
	Start float64 `json:"start"`
	Rate  float64 `json:"rate,omitempty"`
	First int     `json:"first"`
	Drain bool    `json:"drain,omitempty"`
}

// entry is a request: each line of a file but the header is an entry.
type entry struct {
	ID       string          `json:"id,omitempty"`
	At       *float64        `json:"at,omitempty"`
	Input    int             `json:"input,omitempty"`
	Output   int             `json:"output"`
	Session  string          `json:"session,omitempty"`
	After    string          `json:"after,omitempty"`
	Join     []string        `json:"join,omitempty"`
	Think    float64         `json:"think,omitempty"`
	Segments [][2]uint64     `json:"segments,omitempty"`
	Answer   uint64          `json:"answer,omitempty"`
	Model    string          `json:"model,omitempty"`
	LoRA     string          `json:"lora,omitempty"`
	Prompt   string          `json:"prompt,omitempty"`
	Messages json.RawMessage `json:"messages,omitempty"`
	Tools    json.RawMessage `json:"tools,omitempty"`
	Tokens   []block.Token   `json:"tokens,omitempty"`
	Recorded string          `json:"recorded,omitempty"`
}

// Write writes w in Warmpath's own format. [Load] of the output with Options.Raw returns an equal workload, except for
// Name and Source.
func Write(out io.Writer, w *Workload) error {
	buffered := bufio.NewWriterSize(out, 1<<16)
	e := json.NewEncoder(buffered)
	e.SetEscapeHTML(false)
	head := header{Version: 1, Name: w.Name, Block: w.Block, Notes: w.Notes}
	for _, s := range w.Stages {
		head.Stages = append(head.Stages, stageEntry{s.Name, s.Start.Seconds(), s.Rate, s.First, s.Drain})
	}
	if err := e.Encode(head); err != nil {
		return fmt.Errorf("write workload: %w", err)
	}
	for i := range w.Requests {
		if err := e.Encode(newEntry(&w.Requests[i])); err != nil {
			return fmt.Errorf("write workload: request %d: %w", i, err)
		}
	}
	if err := buffered.Flush(); err != nil {
		return fmt.Errorf("write workload: %w", err)
	}
	return nil
}

func newEntry(r *Request) *entry {
	at := r.Arrival.Seconds()
	e := &entry{At: &at, Input: r.Input, Output: r.Output, Think: r.Think.Seconds(), Answer: r.OutputSegment, Model: r.Model, LoRA: r.LoRA}
	if r.Session >= 0 {
		e.Session = strconv.Itoa(r.Session)
	}
	if r.After >= 0 {
		e.After = strconv.Itoa(r.After)
	}
	for _, j := range r.Join {
		e.Join = append(e.Join, strconv.Itoa(j))
	}
	if t := r.Text; t != nil {
		e.Prompt, e.Messages, e.Tools, e.Tokens, e.Recorded = t.Prompt, t.Messages, t.Tools, t.Tokens, t.Answer
	}
	// Read makes the segments again if there are recorded token ids, so Write leaves the segments out.
	if r.Text == nil || len(r.Text.Tokens) == 0 {
		for _, s := range r.Segments {
			e.Segments = append(e.Segments, [2]uint64{s.ID, uint64(s.Tokens)})
		}
	}
	return e
}

// readWarmpath reads Warmpath's own format.
func readWarmpath(b *builder, l *lines) error {
	b.clocked = true
	places := map[string]int{} // by request id: index of the request
	row := 0
	var at float64
	err := l.each(func(line []byte) error {
		if l.number == 1 && bytes.Contains(line, []byte(`"warmpath"`)) {
			return b.readHeader(line)
		}
		var e entry
		if err := decodeStrict(line, &e); err != nil {
			return err
		}
		if e.At != nil {
			at = *e.At
		}
		if e.ID == "" {
			e.ID = strconv.Itoa(row)
		}
		row++
		if _, taken := places[e.ID]; taken {
			return fmt.Errorf("id %q is taken by an earlier line", e.ID)
		}
		r, err := b.entryRequest(&e, at, places)
		if err != nil {
			return err
		}
		places[e.ID] = len(b.w.Requests)
		return b.add(*r)
	})
	if err == nil || errors.Is(err, errEnough) {
		if wrong := b.checkStages(); wrong != nil {
			return fmt.Errorf("%w: %w", errWhole, wrong)
		}
	}
	return err
}

func decodeStrict(line []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if d.InputOffset() != int64(len(line)) {
		return errors.New("more follows the object")
	}
	return nil
}

func (b *builder) readHeader(line []byte) error {
	var h header
	if err := decodeStrict(line, &h); err != nil {
		return err
	}
	if h.Version != 1 {
		return fmt.Errorf("version %d of the format is not known, only 1", h.Version)
	}
	if h.Block < 0 || h.Block > MaxTokens {
		return fmt.Errorf("block of %d tokens", h.Block)
	}
	b.w.Block, b.w.Notes = h.Block, h.Notes
	for _, s := range h.Stages {
		start, err := seconds(s.Start)
		if err != nil {
			return fmt.Errorf("stage %q: start: %w", s.Name, err)
		}
		b.w.Stages = append(b.w.Stages, Stage{s.Name, start, s.Rate, s.First, s.Drain})
	}
	return nil
}

// checkStages refuses stages that are out of order. It drops stages that begin after the last request: Options.Limit
// may have cut off their requests.
func (b *builder) checkStages() error {
	stages := b.w.Stages
	for i := range stages {
		if stages[i].First < 0 || i > 0 && stages[i].First < stages[i-1].First {
			return fmt.Errorf("stage %q begins with request %d, before the stage that precedes it", stages[i].Name, stages[i].First)
		}
	}
	b.w.cutStages(len(b.w.Requests))
	return nil
}

// cutStages drops the stages that begin at or after request n.
func (w *Workload) cutStages(n int) {
	for len(w.Stages) > 0 && w.Stages[len(w.Stages)-1].First >= n {
		w.Stages = w.Stages[:len(w.Stages)-1]
	}
}

func (b *builder) entryRequest(e *entry, at float64, places map[string]int) (*Request, error) {
	r := b.request()
	var err error
	if r.Arrival, err = seconds(at); err != nil || r.Arrival < 0 {
		return nil, fmt.Errorf("at: %v is no time since the start, in seconds", at)
	}
	if r.Think, err = seconds(e.Think); err != nil || r.Think < 0 {
		return nil, fmt.Errorf("think: %v s is not a pause", e.Think)
	}
	if e.Session != "" {
		r.Session, _ = b.session(e.Session)
	}
	if r.After, err = place(places, e.After); err != nil {
		return nil, fmt.Errorf("after: %w", err)
	}
	for _, name := range e.Join {
		j, err := place(places, name)
		if err != nil || j < 0 || r.After < 0 {
			return nil, errors.Join(err, errors.New("join: want earlier requests, beside after"))
		}
		r.Join = append(r.Join, j)
	}
	if r.After >= 0 {
		r.Arrival = max(r.Arrival, b.w.Requests[r.After].Arrival)
	}
	r.Input, r.Output, r.OutputSegment, r.Model, r.LoRA = e.Input, e.Output, e.Answer, e.Model, e.LoRA
	if e.Output < 1 {
		return nil, errors.New("output: want at least 1")
	}
	return &r, e.fillPrompt(&r)
}

func place(places map[string]int, name string) (int, error) {
	if name == "" {
		return -1, nil
	}
	i, ok := places[name]
	if !ok {
		return -1, fmt.Errorf("there is no request %q on an earlier line", name)
	}
	return i, nil
}

// fillPrompt puts e's prompt into r. If e has several forms of the prompt, r.Text has the token ids, or else the
// messages, or else the text. r.Segments come from the token ids, or else from e's segments, or else from the messages
// or the text.
func (e *entry) fillPrompt(r *Request) error {
	body := openaiRow{Messages: e.Messages, Tools: e.Tools}
	switch {
	case len(e.Tokens) > 0:
		r.Text = &Text{Tokens: e.Tokens, Answer: e.Recorded}
		r.setTokens(e.Tokens)
	case present(e.Messages) != nil:
		if err := body.fill(r); err != nil {
			return err
		}
		r.Text.Answer = e.Recorded
		r.Model = e.Model
	case e.Prompt != "":
		r.Text = &Text{Prompt: e.Prompt, Answer: e.Recorded}
		r.Segments = textSegments([]byte(e.Prompt))
		r.Input = textTokens(len(e.Prompt))
	}
	if len(e.Segments) > 0 && len(e.Tokens) == 0 {
		sum := 0
		r.Segments = make([]Segment, 0, len(e.Segments))
		for _, s := range e.Segments {
			if s[1] < 1 || s[1] > MaxTokens {
				return fmt.Errorf("segments: %d tokens", s[1])
			}
			sum += int(s[1])
			r.Segments = append(r.Segments, Segment{ID: s[0], Tokens: int(s[1])})
		}
		r.Input = sum
	}
	if e.Input < 0 {
		return fmt.Errorf("input: %d tokens", e.Input)
	}
	if e.Input != 0 && r.Input != e.Input {
		if len(r.Segments) > 0 && r.Text != nil && len(e.Segments) == 0 && len(e.Tokens) == 0 {
			r.fit(e.Input) // the file's number of tokens replaces the estimate from the text
			return nil
		}
		return fmt.Errorf("input: %d tokens, but the segments or tokens are %d", e.Input, r.Input)
	}
	if r.Input < 1 {
		return errors.New("input: want at least 1, or segments, tokens, prompt or messages")
	}
	return nil
}

// fit changes r's segments to n tokens in total; n is at least 1. fit cuts the end, or appends a segment that no other
// request has.
func (r *Request) fit(n int) {
	if n > MaxTokens {
		r.Input = n // builder.add returns the error for this length
		return
	}
	left := n
	for i, s := range r.Segments {
		if s.Tokens >= left {
			r.Segments = append(r.Segments[:i:i], Segment{ID: s.ID, Tokens: left})
			r.Input = n
			return
		}
		left -= s.Tokens
	}
	if r.Segments != nil {
		r.Segments = append(r.Segments, Segment{ID: ownID(r.ID, ownPrompt), Tokens: left})
	}
	r.Input = n
}
