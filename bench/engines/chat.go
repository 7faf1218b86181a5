package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// answer is a client's view of one answer.
type answer struct {
	text   string
	first  time.Duration // time to the first text; for an answer without text, the time to the end
	prompt int           // prompt tokens, by the usage at the end of the stream
	cached int           // cached prompt tokens, by the same usage
}

// client sends requests to one address.
type client struct {
	url   string
	model string
	http  *http.Client
}

func newClient(url, model string) *client {
	return &client{url: url, model: model, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
}

type chatRequest struct {
	Model         string         `json:"model"`
	Messages      []message      `json:"messages"`
	MaxTokens     int            `json:"max_tokens"`
	Temperature   float64        `json:"temperature"`
	IgnoreEOS     bool           `json:"ignore_eos"`
	Stream        bool           `json:"stream"`
	StreamOptions map[string]any `json:"stream_options"`
}

// chunk has the fields of an event that the client reads.
type chunk struct {
	Choices []struct {
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
		FinishReason string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		Prompt    int `json:"prompt_tokens"`
		Completed int `json:"completion_tokens"`
		Details   *struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

// chat asks for a stream with an answer of the given number of tokens, without random sampling. It checks status, end
// and number of tokens of the answer.
func (c *client) chat(ctx context.Context, messages []message, tokens int) (answer, error) {
	body, err := json.Marshal(chatRequest{Model: c.model, Messages: messages, MaxTokens: tokens, IgnoreEOS: true, Stream: true,
		StreamOptions: map[string]any{"include_usage": true}})
	if err != nil {
		return answer{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	start := time.Now()
	resp, err := c.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
		return answer{}, fmt.Errorf("status %d: %s", resp.StatusCode, bytes.TrimSpace(b))
	}
	return readStream(resp.Body, tokens, func() time.Duration { return time.Since(start) })
}

// readStream reads the events of an answer. now returns the time since the sending of the request.
func readStream(r io.Reader, tokens int, now func() time.Duration) (answer, error) {
	var a answer
	var text strings.Builder
	var finish string
	completed, done := 0, false
	lines := bufio.NewReader(r)
	for !done {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return a, fmt.Errorf("stream cut after %d bytes of text: %w", text.Len(), err)
		}
		data, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data:"))
		if !ok {
			continue
		}
		if data = bytes.TrimSpace(data); string(data) == "[DONE]" {
			done = true
			continue
		}
		var ch chunk
		if err := json.Unmarshal(data, &ch); err != nil {
			return a, fmt.Errorf("event is not JSON: %w", err)
		}
		if len(ch.Error) > 0 && string(ch.Error) != "null" {
			return a, fmt.Errorf("error in the stream: %.200s", ch.Error)
		}
		for _, choice := range ch.Choices {
			if choice.Delta.Content != "" && a.first == 0 {
				a.first = now()
			}
			text.WriteString(choice.Delta.Content)
			if choice.FinishReason != "" {
				finish = choice.FinishReason
			}
		}
		if u := ch.Usage; u != nil {
			a.prompt, completed = u.Prompt, u.Completed
			if u.Details != nil {
				a.cached = u.Details.Cached
			}
		}
	}
	// Read the end of the HTTP framing, so that the connection can be used again.
	_, _ = io.Copy(io.Discard, lines)
	if a.first == 0 {
		a.first = now()
	}
	a.text = text.String()
	if finish != "length" || completed != tokens {
		return a, fmt.Errorf("answer has %d of %d tokens, finish reason %q", completed, tokens, finish)
	}
	return a, nil
}
