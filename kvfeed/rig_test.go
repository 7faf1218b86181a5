package kvfeed

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/test/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a router with its fleet and its feed.
type rig struct {
	t      testing.TB
	fleet  *fleet.Fleet
	router *warmpath.Router
	feed   *Feed
	log    *testenv.Buffer
}

func newRig(t testing.TB, c Config) *rig {
	t.Helper()
	return newRigWithIndex(t, c, kvindex.Config{})
}

func newRigWithIndex(t testing.TB, c Config, index kvindex.Config) *rig {
	t.Helper()
	return newRigWithFleet(t, c, index, fleet.New(fleet.Config{}))
}

func newRigWithFleet(t testing.TB, c Config, index kvindex.Config, f *fleet.Fleet) *rig {
	t.Helper()
	r := &rig{t: t, fleet: f, log: &testenv.Buffer{}}
	var err error
	if r.router, err = warmpath.New(warmpath.Options{Fleet: r.fleet, SpeculativeTTL: -1, ApproximateTTL: -1, Index: index}); err != nil {
		t.Fatal(err)
	}
	r.feed = New(r.router, c, slog.New(slog.NewTextHandler(r.log, nil)))
	return r
}

const workerURL = "http://127.0.0.1:8000"

func facts(e fleet.Engine, blockSize int) fleet.Facts {
	return fleet.Facts{Engine: e, Models: []fleet.Model{{ID: "m"}}, BlockSize: blockSize}
}

// stream puts a worker into the fleet and returns the stream of its first rank.
func (r *rig) stream(f fleet.Facts) *stream {
	r.t.Helper()
	id := r.fleet.Put(workerURL, f)
	for _, w := range r.fleet.Snapshot().Workers() {
		if w.ID == id {
			r.feed.reconcile(r.t.Context(), r.fleet.Snapshot()) // lets the feed see the worker's adapters
			return r.follow(w)
		}
	}
	r.t.Fatal("the worker is not in the fleet")
	return nil
}

// follow returns the stream of a worker's first rank. The stream is connected, and its history is whole.
func (r *rig) follow(w *fleet.Worker) *stream {
	s := r.feed.newStream(w, w.Holders[0], fleet.EventSource{Endpoint: "tcp://127.0.0.1:5557"})
	s.wire = func() StreamStats { return StreamStats{} }
	s.State(true, nil)
	s.Complete()
	return s
}

// match returns the number of prompt tokens that the index has for the worker that the router chooses.
func (r *rig) match(tokens []block.Token, change ...func(*warmpath.Request)) int {
	r.t.Helper()
	req := &warmpath.Request{Model: "m", Tokens: tokens, Now: time.Now().UnixNano()}
	for _, f := range change {
		f(req)
	}
	d, err := r.router.Explain(r.t.Context(), req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer d.Recycle()
	return d.MatchTokens
}

func (r *rig) trust(h fleet.Holder, want fleet.Trust, why string) {
	r.t.Helper()
	got, reason := r.fleet.Snapshot().Trust(h)
	if got != want || !bytes.Contains([]byte(reason), []byte(why)) {
		r.t.Errorf("trust %v (%q), want %v (… %q …)", got, reason, want, why)
	}
}

// prompt returns n tokens of conversation c.
func prompt(c, n int) []block.Token {
	tokens := make([]block.Token, n)
	for i := range tokens {
		tokens[i] = block.Token(c*100_000 + i)
	}
	return tokens
}

// wire encodes a batch of events as this version of an engine does.
func wire(t testing.TB, version string, b *kvevent.Batch) []byte {
	t.Helper()
	w, err := kvevent.ParseWire(version)
	if err != nil {
		t.Fatal(err)
	}
	return w.Append(nil, b)
}

func batch(events ...kvevent.Event) *kvevent.Batch {
	return &kvevent.Batch{Time: 1763700000.5, HasRank: true, Events: events}
}

// hashes returns the engine's hashes of n blocks of conversation c, beginning with the block number first.
func hashes(c, first, n int) []kvevent.Hash {
	out := make([]kvevent.Hash, n)
	for i := range out {
		out[i] = kvevent.Hash(c)<<32 | kvevent.Hash(first+i+1)
	}
	return out
}

// stored returns an event that announces blocks: the tokens start to start+n of conversation c, in blocks of size
// tokens.
func stored(c, start, n, size int) kvevent.Event {
	e := kvevent.Event{
		Kind: kvevent.Stored, Group: -1, Medium: "GPU", BlockSize: size,
		Hashes: hashes(c, start/size, n/size), Tokens: prompt(c, start+n)[start:],
	}
	if start > 0 {
		e.HasParent, e.Parent = true, hashes(c, start/size-1, 1)[0]
	}
	return e
}

func removed(c, first, n int) kvevent.Event {
	return kvevent.Event{Kind: kvevent.Removed, Group: -1, Medium: "GPU", Hashes: hashes(c, first, n)}
}
