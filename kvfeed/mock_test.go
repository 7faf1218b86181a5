package kvfeed

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/mockengine"
)

// complete sends a prompt of token ids, and returns how many of them the engine reports as cached.
func complete(t *testing.T, url, model string, tokens []block.Token) int {
	t.Helper()
	body, err := json.Marshal(map[string]any{"model": model, "prompt": tokens, "max_tokens": 4})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(url+"/v1/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct {
		Usage struct {
			Details *struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d, %v", resp.StatusCode, err)
	}
	if answer.Usage.Details == nil {
		return 0
	}
	return answer.Usage.Details.Cached
}

func TestPredictionsEqualWhatEnginesReport(t *testing.T) {
	for _, kind := range []mockengine.Kind{mockengine.VLLM, mockengine.SGLang} {
		for _, blocks := range []int{4096, 80} {
			t.Run(fmt.Sprintf("%s/blocks=%d", kind, blocks), func(t *testing.T) {
				c := mockengine.DefaultConfig()
				c.Kind, c.Model, c.Blocks = kind, "m", blocks
				c.Wire = map[mockengine.Kind]string{mockengine.VLLM: "vllm-0.32.0", mockengine.SGLang: "sglang-0.5.23"}[kind]
				engine, err := mockengine.New(c)
				if err != nil {
					t.Fatal(err)
				}
				r := newRig(t, Config{Stream: quick})
				ctx, cancel := context.WithCancel(t.Context())
				var running [2]chan error
				for i := range running {
					running[i] = make(chan error, 1)
				}
				go func() { running[0] <- engine.Run(ctx) }()
				<-engine.Ready()
				watcher, err := discovery.NewWatcher(r.fleet, []discovery.Target{{URL: engine.URL()}}, discovery.Config{}, nil, slog.New(slog.NewTextHandler(r.log, nil)))
				if err != nil {
					t.Fatal(err)
				}
				go func() { running[1] <- watcher.Run(ctx) }()
				stop := r.run()
				defer func() {
					http.DefaultClient.CloseIdleConnections()
					stop()
					cancel()
					for _, done := range running {
						if err := <-done; err != nil {
							t.Error(err)
						}
					}
				}()
				r.eventually("ready", func() bool {
					workers := r.fleet.Snapshot().Workers()
					return len(workers) == 1 && workers[0].Ready
				})
				r.eventually("exact", r.hasTrust(0, fleet.TrustExact, ""))

				random := rand.New(rand.NewPCG(7, uint64(blocks)))
				conversations := make([][]block.Token, 12)
				for i := range 150 {
					at := random.IntN(len(conversations))
					if len(conversations[at]) > 500 {
						conversations[at] = conversations[at][:random.IntN(200)]
					}
					for range 1 + random.IntN(90) {
						conversations[at] = append(conversations[at], block.Token(1000*at+random.IntN(1000)))
					}
					p := slices.Clone(conversations[at])
					predicted := r.match(p)
					if cached := complete(t, engine.URL(), "m", p); cached != predicted {
						t.Fatalf("request %d of %d tokens: predicted %d, the engine reports %d", i, len(p), predicted, cached)
					}
					r.eventually("its events", func() bool {
						return engine.Stats().Ranks[0].Running == 0 && r.feed.Stats()[0].Messages == engine.Stats().Ranks[0].Published
					})
				}
				if st := r.feed.Stats(); blocks < 100 && st[0].Removed == 0 {
					t.Error("no block was evicted, so the test does not cover evictions")
				}
			})
		}
	}
}
