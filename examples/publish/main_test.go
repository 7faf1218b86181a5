package main

import (
	"container/list"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/kvfeed"
	"github.com/warmpath/warmpath/publish"
)

// cache follows the engine's events, and calls complete when the history is complete.
type cache struct {
	blocks   map[kvevent.Hash]bool
	complete func()
}

func (c *cache) Message(_ uint64, payload []byte) {
	var d kvevent.Decoder
	var b kvevent.Batch
	if d.Decode(payload, &b) != nil {
		return
	}
	for _, e := range b.Events {
		for _, h := range e.Hashes {
			if e.Kind == kvevent.Stored {
				c.blocks[h] = true
			} else {
				delete(c.blocks, h)
			}
		}
	}
}
func (c *cache) Restarted(string)      {}
func (c *cache) Lost(uint64, uint64)   {}
func (c *cache) Behind(bool)           {}
func (c *cache) Complete()             { c.complete() }
func (c *cache) Unnumbered()           {}
func (c *cache) State(_ bool, _ error) {}

func TestTheEnginesCacheIsPublished(t *testing.T) {
	e := &engine{size: 2, capacity: 4, cached: map[string]*list.Element{},
		events: publish.New(publish.Config{Endpoint: "tcp://127.0.0.1:*", Replay: "tcp://127.0.0.1:*", BlockSize: 2})}
	if err := e.events.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.events.Run(ctx) }() // ends when ctx ends
	server := httptest.NewServer(e.handler())
	defer server.Close()
	for _, c := range []struct {
		prompt string
		cached int
	}{{"1,2,3,4,5", 0}, {"1,2,3,4,6,7", 4}, {"1,2,9,9", 2}, {"8,8,8,8", 0}, {"1,2,3,4", 2}, {"1,2,3,4", 2}, {"1,2,3,4,5", 4}, {"", 0}, {"[]", -1}} {
		resp, err := http.Post(server.URL+"/v1/completions", "application/json", strings.NewReader(`{"prompt":[`+c.prompt+`]}`))
		if err != nil {
			t.Fatal(err)
		}
		var body struct {
			Usage struct {
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		err = json.NewDecoder(resp.Body).Decode(&body)
		_ = resp.Body.Close()
		if c.cached >= 0 && (err != nil || body.Usage.Details.Cached != c.cached) || c.cached < 0 && resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: status %d, %d cached tokens, %v", c.prompt, resp.StatusCode, body.Usage.Details.Cached, err)
		}
	}
	following, done := context.WithCancel(ctx)
	known := &cache{blocks: map[kvevent.Hash]bool{}, complete: done}
	source := fleet.EventSource{Endpoint: e.events.Endpoint(), Replay: e.events.ReplayEndpoint()}
	if err := kvfeed.NewSubscriber(source, kvfeed.StreamConfig{}, known).Run(following); err != nil {
		t.Fatal(err)
	}
	if len(known.blocks) != len(e.cached) {
		t.Errorf("the events say %d blocks, the engine has %d", len(known.blocks), len(e.cached))
	}
	for hash := range e.cached {
		if !known.blocks[publish.Number([]byte(hash))] {
			t.Errorf("the events do not have block %x", hash)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
