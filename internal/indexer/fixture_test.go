package indexer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/kvindex"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a running service over an index that the test fills.
type world struct {
	t       testing.TB
	fleet   *fleet.Fleet
	router  *warmpath.Router
	service *Service
	changes *Changes
	url     string
	rpc     string // the address for gRPC
	scoped  []string
	mu      sync.Mutex // guards scoped
	stop    func()
}

// serve runs a service until the test ends.
func serve(t testing.TB, cfg Config, change func(*Parts)) *world {
	t.Helper()
	w := &world{t: t, fleet: fleet.New(fleet.Config{})}
	w.changes = NewChanges(w.fleet)
	var err error
	if w.router, err = warmpath.New(warmpath.Options{Fleet: w.fleet, IndexChanged: w.changes.Made}); err != nil {
		t.Fatal(err)
	}
	parts := Parts{Router: w.router, Fleet: w.fleet, Telemetry: telemetry.New(telemetry.DefaultConfig()), Log: slog.New(slog.DiscardHandler), Changes: w.changes,
		Scoped: func(url string, _ int, salt, extra string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.scoped = append(w.scoped, url+" "+salt+"/"+extra)
		}}
	if change != nil {
		change(&parts)
	}
	w.service = New(cfg, parts)
	front, rpc := listen(t), listen(t)
	w.url, w.rpc = "http://"+front.Addr().String(), rpc.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.service.Serve(ctx, front, rpc) }() // stop waits for it
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	t.Cleanup(w.stop)
	return w
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// worker puts a worker of the model m into the fleet, with exact trust.
func (w *world) worker(url string, change func(*fleet.Facts)) *fleet.Worker {
	w.t.Helper()
	f := fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "m"}}, BlockSize: 16}
	if change != nil {
		change(&f)
	}
	id := w.fleet.Put(url, f)
	one := w.fleet.Snapshot().ByID(id)
	for _, h := range one.Holders {
		w.fleet.SetTrust(h, fleet.TrustExact, "test")
	}
	return one
}

// store announces the first tokens of a prompt for a holder.
func (w *world) store(h fleet.Holder, tokens []block.Token, s kvindex.Stored) {
	w.t.Helper()
	s.BlockSize = w.fleet.Snapshot().Worker(h).Facts.BlockSize
	s.Tokens, s.Hashes = tokens[:len(tokens)/s.BlockSize*s.BlockSize], nil
	for i := s.BlockSize - 1; i < len(s.Tokens); i += s.BlockSize {
		s.Hashes = append(s.Hashes, hashOf(s.Scope, s.Tokens[i]))
	}
	if w.router.Store(h, &s) == 0 {
		w.t.Fatal("nothing stored")
	}
}

// hashOf returns an engine's hash of the block of a prompt that ends with a token. No two prompts share a token.
func hashOf(s block.Scope, last block.Token) uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, s.LoRA, "/", s.Salt, "/", s.Extra, "/", last)
	return h.Sum64()
}

// prompt returns a prompt of n tokens. Prompts with different seeds have no block in common.
func prompt(seed, n int) []block.Token {
	out := make([]block.Token, n)
	for i := range out {
		out[i] = block.Token(seed*1000000 + i)
	}
	return out
}

// list returns token ids as JSON.
func list[T any](values []T) string {
	b, _ := json.Marshal(values)
	return string(b)
}

// ask sends a request, and returns the status and the answer.
func (w *world) ask(method, path, body string, headers ...string) (int, string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute) // an answer may have no end
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, w.url+path, bytes.NewReader([]byte(body)))
	if err != nil {
		w.t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// scores asks, and returns the matched tokens of each worker's rank.
func (w *world) scores(path, body string) map[string]map[string]int {
	w.t.Helper()
	status, text := w.ask("POST", path, body)
	var out struct {
		Scores map[string]map[string]int `json:"scores"`
	}
	if err := json.Unmarshal([]byte(text), &out); err != nil || status != http.StatusOK {
		w.t.Fatalf("%d %s: %v", status, text, err)
	}
	return out.Scores
}
