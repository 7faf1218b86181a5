// Command publish is an engine of one's own, without a model: it has a cache of blocks with LRU eviction, publishes
// what it stores and removes, and answers completions of token ids with the number of cached tokens.
//
//	go run -C examples ./publish    # in the repository's root; -h lists the flags
//	go run ./cmd/warmpath serve --worker http://127.0.0.1:8000,events=tcp://127.0.0.1:5557,replay=tcp://127.0.0.1:5657
//	curl -i -d '{"model":"toy","prompt":['$(seq -s, 64)']}' 127.0.0.1:8080/v1/completions
package main

import (
	"container/list"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/warmpath/warmpath/publish"
)

func main() {
	var cfg publish.Config
	flag.StringVar(&cfg.Endpoint, "events", "tcp://127.0.0.1:5557", "PUB `ENDPOINT`")
	flag.StringVar(&cfg.Replay, "replay", "tcp://127.0.0.1:5657", "replay `ENDPOINT`")
	flag.IntVar(&cfg.BlockSize, "block-size", 16, "tokens in a block")
	flag.IntVar(&cfg.BufferSteps, "buffer-steps", 0, "messages that are kept for replay; 0: 10,000")
	flag.IntVar(&cfg.QueueMessages, "hwm", 0, "messages that wait for one subscriber; 0: 100,000")
	listen := flag.String("listen", "127.0.0.1:8000", "`ADDRESS` of the HTTP server")
	blocks := flag.Int("blocks", 4096, "blocks in the cache")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, *listen, *blocks, cfg); err != nil {
		log.Fatal(err)
	}
}

// serve runs the engine until ctx ends.
func serve(ctx context.Context, listen string, blocks int, cfg publish.Config) error {
	e := &engine{size: cfg.BlockSize, capacity: blocks, events: publish.New(cfg), cached: map[string]*list.Element{}}
	if err := e.events.Listen(); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	var publishing sync.WaitGroup
	defer publishing.Wait()
	defer stop()
	publishing.Go(func() { // ends with ctx
		if err := e.events.Run(ctx); err != nil {
			log.Print(err)
		}
	})
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	log.Printf("listening on %s", l.Addr())
	server := &http.Server{Handler: e.handler()}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.Serve(l); err != http.ErrServerClosed {
		return err
	}
	return nil
}

// engine is the cache of an engine. The hash of a block is the key of its entry.
type engine struct {
	size     int
	capacity int
	events   *publish.KVPublisher

	mu     sync.Mutex // guards the fields below, and keeps the events in the order of the changes
	cached map[string]*list.Element
	used   list.List // hashes of the cached blocks, the least recently used one first
}

// run takes a prompt through the cache, publishes what changes, and returns the number of cached tokens.
func (e *engine) run(prompt []uint32) (cachedTokens int, err error) {
	hashes, err := publish.HashBlocks(prompt, e.size, nil, "", "")
	if err != nil {
		return 0, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	hashes = hashes[:min(len(hashes), e.capacity)]
	hit := 0
	for hit < len(hashes) && e.cached[string(hashes[hit])] != nil {
		hit++
	}
	// The beginning of a prompt is used last, so that a block is never evicted before the blocks after it.
	for i := hit - 1; i >= 0; i-- {
		e.used.MoveToBack(e.cached[string(hashes[i])])
	}
	var evicted [][]byte
	for len(e.cached) > e.capacity-(len(hashes)-hit) {
		oldest := e.used.Remove(e.used.Front()).(string)
		delete(e.cached, oldest)
		evicted = append(evicted, []byte(oldest))
	}
	for i := len(hashes) - 1; i >= hit; i-- {
		at := e.used.PushBack(string(hashes[i]))
		e.cached[string(hashes[i])] = at
	}
	for i := hit - 1; i >= 0; i-- {
		e.used.MoveToBack(e.cached[string(hashes[i])])
	}
	// An engine always computes the last token, so a block that has it does not count as cached: vLLM reports 48 of 64
	// tokens.
	return min(hit, max(len(prompt)-1, 0)/e.size) * e.size, e.publish(prompt, hashes, hit, evicted)
}

// publish publishes one step: what it removed, and the blocks from hit on, which it stored.
func (e *engine) publish(prompt []uint32, hashes [][]byte, hit int, evicted [][]byte) error {
	var events []publish.Event
	if len(evicted) > 0 {
		events = append(events, publish.Event{Removed: &publish.Removed{BlockDigests: evicted}})
	}
	if hit < len(hashes) {
		stored := &publish.Stored{TokenIDs: prompt[hit*e.size : len(hashes)*e.size], BlockDigests: hashes[hit:]}
		if hit > 0 {
			stored.ParentDigest = hashes[hit-1]
		}
		events = append(events, publish.Event{Stored: stored})
	}
	if len(events) == 0 {
		return nil
	}
	_, err := e.events.PublishBatch(events...)
	return err
}

func (e *engine) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"object": "list", "data": []any{map[string]any{"id": "toy", "object": "model", "owned_by": "me"}}})
	})
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Prompt []uint32 }
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 8<<20)).Decode(&body); err != nil {
			http.Error(w, "this engine takes prompts of token ids: "+err.Error(), http.StatusBadRequest)
			return
		}
		cached, err := e.run(body.Prompt)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		answer(w, map[string]any{"object": "text_completion", "model": "toy",
			"choices": []any{map[string]any{"index": 0, "text": "ok", "finish_reason": "stop"}},
			"usage": map[string]any{"prompt_tokens": len(body.Prompt), "completion_tokens": 1, "total_tokens": len(body.Prompt) + 1,
				"prompt_tokens_details": map[string]any{"cached_tokens": cached}}})
	})
	// For tests: many prompts at once, and what was published.
	mux.HandleFunc("POST /flood", func(_ http.ResponseWriter, r *http.Request) {
		var n int
		_, _ = fmt.Sscan(r.URL.Query().Get("prompts"), &n)
		prompt := make([]uint32, 8*e.size)
		for range n {
			for i := range prompt {
				prompt[i] = rand.Uint32N(50_000)
			}
			if _, err := e.run(prompt); err != nil {
				log.Print(err)
			}
		}
	})
	mux.HandleFunc("GET /published", func(w http.ResponseWriter, _ *http.Request) {
		s := e.events.Stats()
		answer(w, map[string]any{"published": s.Published, "dropped": s.Dropped})
	})
	return mux
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // an error means that the client is gone
}
