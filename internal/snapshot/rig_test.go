package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/kvfeed"
	"github.com/warmpath/warmpath/test/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine is a publisher of KV events.
type engine struct {
	*mockengine.Publisher
	url  string
	wire kvevent.Wire
	at   int // number of prompts so far
	seed int
	// through is the endpoint at which a router subscribes; "": the publisher's.
	through string
}

// relay is a way to an engine that can be cut.
type relay struct {
	net.Listener
	to      string
	running sync.WaitGroup

	mu    sync.Mutex // guards the fields below
	cut   bool
	conns []net.Conn
}

// newRelay returns a way to an endpoint. It ends with the test.
func newRelay(t testing.TB, endpoint string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{Listener: l, to: strings.TrimPrefix(endpoint, "tcp://")}
	r.running.Go(func() { // ends when the listener is closed
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			r.pass(from)
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		r.setCut(true)
		r.running.Wait()
	})
	return r
}

// pass connects a connection with the engine, until one of them ends.
func (r *relay) pass(from net.Conn) {
	to, err := net.Dial("tcp", r.to)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil || r.cut {
		_ = from.Close()
		if err == nil {
			_ = to.Close()
		}
		return
	}
	r.conns = append(r.conns, from, to)
	for _, pair := range [][2]net.Conn{{from, to}, {to, from}} {
		r.running.Go(func() {
			_, _ = io.Copy(pair[0], pair[1])
			_, _ = pair[0].Close(), pair[1].Close()
		})
	}
}

// setCut cuts the way, or mends it.
func (r *relay) setCut(cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cut = cut; cut {
		for _, c := range r.conns {
			_ = c.Close()
		}
		r.conns = nil
	}
}

// promptBlocks is the number of blocks of one prompt, and of one message.
const promptBlocks, blockTokens = 64, 16

// newEngine starts a publisher. replay 0 means that it has no replay endpoint.
func newEngine(t testing.TB, url string, seed, replay int) *engine {
	t.Helper()
	c := mockengine.PublisherConfig{Endpoint: "tcp://127.0.0.1:0", BufferSteps: replay}
	if replay > 0 {
		c.Replay = "tcp://127.0.0.1:0"
	}
	wire, err := kvevent.ParseWire("vllm-0.32.0")
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{Publisher: mockengine.NewPublisher(c), url: url, wire: wire, seed: seed}
	if err := e.Listen(); err != nil {
		t.Fatal(err)
	}
	running(t, e.Run)
	return e
}

// running runs a component until the test ends, or until stop is called.
func running(t testing.TB, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }() // ends after stop
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// prompt returns the tokens of the engine's i-th prompt.
func (e *engine) prompt(i int) []block.Token {
	tokens := make([]block.Token, promptBlocks*blockTokens)
	for k := range tokens {
		tokens[k] = block.Token((e.seed<<20 + i) ^ k<<9 ^ k)
	}
	return tokens
}

// cache publishes the next n prompts, one message each.
func (e *engine) cache(t testing.TB, n int) {
	t.Helper()
	for range n {
		ev := kvevent.Event{Kind: kvevent.Stored, Group: -1, Medium: "GPU", BlockSize: blockTokens, Tokens: e.prompt(e.at)}
		for k := range promptBlocks {
			ev.Hashes = append(ev.Hashes, block.Mix64(uint64(e.seed)<<40|uint64(e.at)<<8|uint64(k)|1<<60))
		}
		e.Publish(e.wire.Append(nil, &kvevent.Batch{Time: float64(e.at), HasRank: true, Events: []kvevent.Event{ev}}))
		e.at++
	}
}

// site is one router's index with its feed, keeper and admin listener.
type site struct {
	t      testing.TB
	router *warmpath.Router
	feed   *kvfeed.Feed
	keeper *Keeper
	giver  *Giver
	admin  *httptest.Server
	log    *testenv.Buffer
	stop   func()
}

// sites is the number of sites so far, for their names.
var sites atomic.Int64

// newSite starts a router with these engines, in this order.
func newSite(t testing.TB, cfg Config, engines ...*engine) *site {
	t.Helper()
	return newSiteWith(t, cfg, peerSilence, engines...)
}

// newSiteWith is newSite with another limit for peers that send nothing.
func newSiteWith(t testing.TB, cfg Config, silence time.Duration, engines ...*engine) *site {
	t.Helper()
	s := &site{t: t, log: &testenv.Buffer{}}
	log := slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	f := fleet.New(fleet.Config{})
	var err error
	if s.router, err = warmpath.New(warmpath.Options{Fleet: f, SpeculativeTTL: -1, ApproximateTTL: -1}); err != nil {
		t.Fatal(err)
	}
	s.feed = kvfeed.New(s.router, kvfeed.Config{}, log)
	s.giver = NewGiver(s.feed, t.Name()+fmt.Sprint(sites.Add(1)), "test", log)
	s.admin = httptest.NewServer(s.giver)
	t.Cleanup(s.admin.Close)
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	for i, peer := range cfg.Peers {
		cfg.Peers[i] = strings.Replace(peer, "itself", s.admin.URL, 1)
	}
	if cfg.PeerTimeout == 0 {
		cfg.PeerTimeout = 20 * time.Second
	}
	s.keeper = NewKeeper(cfg, Parts{Feed: s.feed, Client: client, Name: s.giver.name, Version: "test", Room: 1 << 30, Log: log})
	s.keeper.silence = silence
	for _, e := range engines {
		f.Put(e.url, fleet.Facts{
			Engine: fleet.EngineVLLM, Version: "0.32.0", Models: []fleet.Model{{ID: "m"}}, BlockSize: blockTokens, Ranks: 1,
			Events: []fleet.EventSource{{Endpoint: cmp.Or(e.through, e.Endpoint()), Replay: e.ReplayEndpoint()}},
		})
	}
	feed, keeper := running(t, s.feed.Run), running(t, s.keeper.Run)
	s.stop = func() { keeper(); feed() }
	return s
}

// trusts returns the trust in each worker.
func (s *site) trusts() map[string]fleet.Trust {
	all := map[string]fleet.Trust{}
	snap := s.router.Fleet().Snapshot()
	for _, w := range snap.Workers() {
		all[w.URL], _ = snap.Trust(w.Holders[0])
	}
	return all
}

// awaitExact waits until trust in all these workers is exact.
func (s *site) awaitExact(engines ...*engine) {
	s.t.Helper()
	testenv.Until(s.t, "trust to be exact", func() bool {
		trusts := s.trusts()
		for _, e := range engines {
			if trusts[e.url] != fleet.TrustExact {
				return false
			}
		}
		return true
	})
}

// match returns how many tokens of an engine's prompt match at the engine.
func (s *site) match(e *engine, prompt int) int {
	s.t.Helper()
	d, err := s.router.Explain(s.t.Context(), &warmpath.Request{Model: "m", Tokens: append(e.prompt(prompt), 1), Now: time.Now().UnixNano(), Target: e.url})
	if err != nil {
		s.t.Fatal(err)
	}
	defer d.Recycle()
	return d.MatchTokens
}
