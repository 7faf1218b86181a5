package loadgen

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/valyala/fastjson"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/network"
)

// exchange is one request and its answer.
type exchange struct {
	first, end time.Time       // times of the first token and of the end of the answer; first is zero if no token came
	gaps       []time.Duration // times between the pieces of the stream that have tokens
	status     int             // HTTP status; 0: there was no answer
	err        error           // reason why the answer is not complete; nil: the answer is complete

	worker, policy string // values of the router's response headers
	predicted      int

	prompt, cached, output int // numbers of tokens in the answer's usage; without usage, count sets prompt and output
	usage, saysCached      bool
	answer                 spoken
}

var errNotWhole = errors.New("the stream ended before the answer did")

// client sends requests to one target.
type client struct {
	http   *http.Client
	target Target
	cfg    *Config
}

func newClient(t Target, cfg *Config) *client {
	transport := &http.Transport{
		DialContext:         network.Of(cfg.Network).Dial,
		MaxIdleConnsPerHost: cfg.MaxOpen,
		DisableCompression:  true, // decompression could delay the pieces of a stream
		WriteBufferSize:     64 << 10,
		ReadBufferSize:      16 << 10,
		Protocols:           new(http.Protocols),
	}
	transport.Protocols.SetHTTP1(!cfg.HTTP2)
	transport.Protocols.SetUnencryptedHTTP2(cfg.HTTP2)
	transport.Protocols.SetHTTP2(cfg.HTTP2)
	return &client{http: &http.Client{Transport: transport}, target: t, cfg: cfg}
}

func (c *client) close() { c.http.CloseIdleConnections() }

func (c *client) request(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.target.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if c.cfg.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+c.cfg.APIKey)
	}
	return c.http.Do(req)
}

// do sends a body and reads the answer.
func (c *client) do(ctx context.Context, path string, body []byte) *exchange {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	x := &exchange{}
	resp, err := c.request(ctx, http.MethodPost, path, body)
	if err != nil {
		x.end, x.err = time.Now(), err
		return x
	}
	defer func() { _ = resp.Body.Close() }() // an error of Close changes no figure, so ignore it
	x.status = resp.StatusCode
	x.worker, x.policy = resp.Header.Get("X-Warmpath-Worker"), resp.Header.Get("X-Warmpath-Policy")
	// The header is absent if the target is not Warmpath; predicted is then 0.
	x.predicted, _ = strconv.Atoi(resp.Header.Get("X-Warmpath-Match"))
	switch {
	case resp.StatusCode != http.StatusOK:
		// The error message has only the beginning of the answer.
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
		x.err = fmt.Errorf("answered %s: %s", resp.Status, bytes.TrimSpace(text))
	case c.cfg.Whole:
		x.err = x.readWhole(resp.Body)
	default:
		x.err = x.readStream(resp.Body)
	}
	x.end = time.Now()
	return x
}

// maxAnswer bounds an answer in one piece, and one line of a stream, in bytes.
const maxAnswer = 64 << 20

func (x *exchange) readWhole(r io.Reader) error {
	data, err := io.ReadAll(io.LimitReader(r, maxAnswer))
	if err != nil {
		return err
	}
	var p fastjson.Parser
	v, err := p.ParseBytes(data)
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	finished, _ := x.learn(v, "message")
	x.first = time.Now()
	if !finished {
		return errNotWhole
	}
	return nil
}

func (x *exchange) readStream(r io.Reader) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 16<<10), maxAnswer)
	var p fastjson.Parser
	var last time.Time
	finished := false
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		if !ok {
			continue
		}
		if data = bytes.TrimSpace(data); string(data) == "[DONE]" {
			continue
		}
		now := time.Now()
		v, err := p.ParseBytes(data)
		if err != nil {
			return fmt.Errorf("read the stream: %w", err)
		}
		if e := v.Get("error"); e != nil && e.Type() != fastjson.TypeNull {
			return fmt.Errorf("the stream reports an error: %s", clip(e.String()))
		}
		end, token := x.learn(v, "delta")
		finished = finished || end
		if !token {
			continue
		}
		if x.first.IsZero() {
			x.first = now
		} else {
			x.gaps = append(x.gaps, now.Sub(last))
		}
		last = now
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if !finished {
		return errNotWhole
	}
	return nil
}

// learn adds v, an answer or a piece of a stream, to x. finished reports whether v has a finish reason other than
// "abort" and "error", and token whether v has tokens.
func (x *exchange) learn(v *fastjson.Value, message string) (finished, token bool) {
	for _, choice := range v.GetArray("choices") {
		before := len(x.answer.text)
		m := choice.Get(message)
		x.answer.text += string(choice.GetStringBytes("text")) + string(m.GetStringBytes("content"))
		// Reasoning and tool calls count as tokens, but the next turn does not repeat them, so they are not in x.answer.text.
		token = token || len(x.answer.text) > before || len(m.GetStringBytes("reasoning_content")) > 0 ||
			len(m.GetStringBytes("reasoning")) > 0 || len(m.GetArray("tool_calls")) > 0
		for _, id := range choice.GetArray("token_ids") {
			x.answer.tokens = append(x.answer.tokens, block.Token(id.GetUint64()))
			token = true
		}
		if reason := choice.GetStringBytes("finish_reason"); len(reason) > 0 && string(reason) != "abort" && string(reason) != "error" {
			finished = true
		}
	}
	if u := v.Get("usage"); u != nil && u.Type() == fastjson.TypeObject {
		x.usage = true
		x.prompt, x.output = u.GetInt("prompt_tokens"), u.GetInt("completion_tokens")
		if d := u.Get("prompt_tokens_details", "cached_tokens"); d != nil {
			x.saysCached = true
			x.cached = d.GetInt()
		}
	}
	return finished, token
}

func clip(s string) string {
	if len(s) > 200 {
		return s[:200] + "…"
	}
	return s
}

// model returns the first model of the target's /v1/models.
func (c *client) model(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	resp, err := c.request(ctx, http.MethodGet, "/v1/models", nil)
	if err != nil {
		return "", fmt.Errorf("ask for models: %w", err)
	}
	defer func() { _ = resp.Body.Close() }() // the body was read before, so an error of Close does not matter
	data, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return "", fmt.Errorf("ask %s for models: %w", c.target.URL, err)
	}
	v, err := fastjson.ParseBytes(data)
	if err != nil || resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("ask %s for models: it answered %s; name the model", c.target.URL, resp.Status)
	}
	if id := v.GetStringBytes("data", "0", "id"); len(id) > 0 {
		return string(id), nil
	}
	return "", fmt.Errorf("%s serves no model", c.target.URL)
}
