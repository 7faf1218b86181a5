package testenv_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/warmpath/warmpath/block"
)

// subject is an engine with a diary of its events.
type subject struct {
	name, url string
	client    *http.Client
	diary     *labDiary
}

// question is a request as token ids.
type question struct {
	prompt []block.Token
	answer int // number of tokens to generate
}

// generated is the answer of an engine.
type generated struct {
	cached int
	ids    []block.Token
}

// ask sends a question. script, if not nil, is the answer that the mock engine must give.
func (s *subject) ask(q question, script []block.Token) (generated, error) {
	body := map[string]any{"model": "tiny", "prompt": q.prompt, "max_tokens": q.answer, "ignore_eos": true, "temperature": 0, "return_token_ids": true}
	if script != nil {
		body["mock_answer"] = script
	}
	data, err := json.Marshal(body)
	if err != nil {
		return generated{}, err
	}
	resp, err := s.client.Post(s.url+"/v1/completions", "application/json", bytes.NewReader(data))
	if err != nil {
		return generated{}, err
	}
	defer resp.Body.Close()
	data, err = io.ReadAll(resp.Body)
	if err != nil {
		return generated{}, err
	}
	var a struct {
		Choices []struct {
			IDs []block.Token `json:"token_ids"`
		} `json:"choices"`
		Usage struct {
			Details *struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(data, &a); err != nil || resp.StatusCode != http.StatusOK || len(a.Choices) != 1 || a.Usage.Details == nil {
		return generated{}, fmt.Errorf("ask %s: %s: %v: %.300s", s.name, resp.Status, err, data)
	}
	return generated{a.Usage.Details.Cached, a.Choices[0].IDs}, nil
}

// post sends a POST without a body.
func (s *subject) post(t *testing.T, path string) {
	t.Helper()
	resp, err := s.client.Post(s.url+path, "application/json", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s: %.300s", s.name, path, resp.Status, body)
	}
}
