package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// demoAnswer is one response, as its client saw it.
type demoAnswer struct {
	conversation int

	worker     string
	policy     string // X-Warmpath-Policy: the policy that decided
	match      int    // X-Warmpath-Match: number of prompt tokens in confirmed blocks; the demo calls them predicted
	prompt     int    // number of prompt tokens, as the engine counts them
	cached     int    // cached prompt tokens, as the engine reports
	text       string
	firstToken time.Duration
}

// demoChunk is one event of a streamed answer.
type demoChunk struct {
	Choices []struct {
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
		Finish string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		Prompt  int `json:"prompt_tokens"`
		Details struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// askDemo sends one chat request and reads the answer to its end.
func askDemo(ctx context.Context, client *http.Client, url string, body []byte) (demoAnswer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return demoAnswer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	began := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return demoAnswer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return demoAnswer{}, fmt.Errorf("the gateway answered %s", resp.Status)
	}
	a := demoAnswer{worker: resp.Header.Get("X-Warmpath-Worker"), policy: resp.Header.Get("X-Warmpath-Policy")}
	a.match, _ = strconv.Atoi(resp.Header.Get("X-Warmpath-Match")) // without the header, match is 0
	finished := false
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok || string(data) == "[DONE]" {
			continue
		}
		var c demoChunk
		if err := json.Unmarshal(data, &c); err != nil {
			return a, fmt.Errorf("read the stream: %w", err)
		}
		if c.Error != nil {
			return a, fmt.Errorf("the engine failed: %s", c.Error.Message)
		}
		for _, choice := range c.Choices {
			if choice.Delta.Content != "" && a.firstToken == 0 {
				a.firstToken = time.Since(began)
			}
			a.text += choice.Delta.Content
			finished = finished || choice.Finish != ""
		}
		if c.Usage != nil {
			a.prompt, a.cached = c.Usage.Prompt, c.Usage.Details.Cached
		}
	}
	if err := lines.Err(); err != nil {
		return a, fmt.Errorf("read the stream: %w", err)
	}
	if !finished {
		return a, fmt.Errorf("the stream ended without a finish_reason")
	}
	return a, nil
}
