package workload

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/warmpath/warmpath/block"
)

// openaiRow is a request body of OpenAI's chat or completions API, or a line of a batch file, which has the request in
// its field body. A log may add fields such as a timestamp and a session.
type openaiRow struct {
	Body *openaiRow `json:"body"`

	Model               string          `json:"model"`
	Messages            json.RawMessage `json:"messages"`
	Tools               json.RawMessage `json:"tools"`
	Prompt              json.RawMessage `json:"prompt"`
	MaxTokens           int             `json:"max_tokens"`
	MaxCompletionTokens int             `json:"max_completion_tokens"`

	Timestamp *float64 `json:"timestamp"` // seconds
	Session   string   `json:"session_id"`
	User      string   `json:"user"`
	Output    int      `json:"output_length"`
	Usage     struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
	} `json:"usage"`
}

// openaiOutput is the assumed length of an answer in tokens if the row does not state a length. Answers in published
// chat traces have 200 to 350 tokens on average.
const openaiOutput = 256

// readOpenAI reads request bodies, one in each line.
func readOpenAI(b *builder, l *lines) error {
	timed, untimed, assumed := 0, 0, 0
	b.note(textNote)
	err := l.each(func(line []byte) error {
		var row openaiRow
		if err := json.Unmarshal(line, &row); err != nil {
			return err
		}
		body := &row
		if row.Body != nil {
			body = row.Body
		}
		r := b.request()
		if at := cmp.Or(row.Timestamp, body.Timestamp); at != nil {
			var err error
			if r.Arrival, err = seconds(*at); err != nil {
				return fmt.Errorf("timestamp: %w", err)
			}
			timed++
		} else {
			r.Arrival = time.Duration(untimed) * time.Second
			untimed++
		}
		if name := cmp.Or(row.Session, body.Session, row.User, body.User); name != "" {
			r.Session, _ = b.session(name)
		}
		if err := body.fill(&r); err != nil {
			return err
		}
		r.Output = cmp.Or(row.Output, row.Usage.Completion, body.MaxCompletionTokens, body.MaxTokens)
		if r.Output < 1 {
			r.Output = openaiOutput
			assumed++
		}
		return b.add(r)
	})
	if timed > 0 && untimed > 0 {
		return fmt.Errorf("%w: %d requests have a timestamp and %d have none", errWhole, timed, untimed)
	}
	if untimed > 0 {
		b.note("the requests have no timestamps: one a second")
	}
	if assumed > 0 {
		b.note("%d requests do not say how long the answer may be: %d tokens", assumed, openaiOutput)
	}
	return err
}

// fill puts the row's prompt into r.
func (row *openaiRow) fill(r *Request) error {
	r.Model = row.Model
	r.Text = &Text{Messages: present(row.Messages), Tools: present(row.Tools)}
	if r.Text.Messages != nil {
		if r.Text.Messages[0] != '[' {
			return errors.New("messages: want a list")
		}
		// Tools come before the messages, as in most chat templates.
		content := append(bytes.Clone(r.Text.Tools), r.Text.Messages...)
		r.Segments = textSegments(content)
		r.Input = textTokens(len(content))
		return nil
	}
	prompt := present(row.Prompt)
	if prompt == nil {
		return errors.New("neither messages nor prompt is there")
	}
	if json.Unmarshal(prompt, &r.Text.Prompt) == nil {
		r.Segments = textSegments([]byte(r.Text.Prompt))
		r.Input = textTokens(len(r.Text.Prompt))
		return nil
	}
	if json.Unmarshal(prompt, &r.Text.Tokens) != nil {
		return errors.New("prompt: want one text or one list of token ids")
	}
	r.setTokens(r.Text.Tokens)
	return nil
}

// present returns a copy of raw, or nil if raw is empty or JSON's null.
func present(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	return bytes.Clone(raw)
}

// setTokens sets r's prompt to the given token ids, in segments of 16 ids.
func (r *Request) setTokens(tokens []block.Token) {
	const piece = 16
	r.Input = len(tokens)
	r.Segments = make([]Segment, 0, (len(tokens)+piece-1)/piece)
	var raw [4 * piece]byte
	for len(tokens) > 0 {
		n := min(piece, len(tokens))
		for i, t := range tokens[:n] {
			raw[4*i], raw[4*i+1], raw[4*i+2], raw[4*i+3] = byte(t), byte(t>>8), byte(t>>16), byte(t>>24)
		}
		r.Segments = append(r.Segments, Segment{ID: xxh3.Hash(raw[:4*n]), Tokens: n})
		tokens = tokens[n:]
	}
}

// tokensRow is a row of LLMServingSim's data sets.
type tokensRow struct {
	Output  int           `json:"output_toks"`
	Arrival float64       `json:"arrival_time_ns"`
	Tokens  []block.Token `json:"input_tok_ids"`
}

// readTokens reads prompts that are given as token ids.
func readTokens(b *builder, l *lines) error {
	return l.each(func(line []byte) error {
		var row tokensRow
		if err := json.Unmarshal(line, &row); err != nil {
			return err
		}
		if len(row.Tokens) == 0 {
			return errors.New("input_tok_ids is missing")
		}
		r := b.request()
		var err error
		if r.Arrival, err = seconds(row.Arrival / 1e9); err != nil {
			return fmt.Errorf("arrival_time_ns: %w", err)
		}
		r.Output = row.Output
		r.Text = &Text{Tokens: row.Tokens}
		r.setTokens(row.Tokens)
		return b.add(r)
	})
}
