package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvfeed"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/test/testenv"
)

// sample returns a checkpoint with a run that has more blocks than one section.
func sample() *kvfeed.Checkpoint {
	c := &kvfeed.Checkpoint{Worker: "http://a:1", Ranks: 2, Rank: 1, Version: "1", Next: 5, Digests: []uint64{2, 4, 6}}
	c.Keys.Model = "m"
	c.State.Complete = true
	c.Runs = []kvindex.Held{
		{Group: 1, Attention: block.AttentionSlidingWindow, Window: 512, AnyTierOrder: true},
		{Tier: block.TierCPU, Keys: []block.Key{1, 2}, Hashes: []uint64{3, 4}, Copies: 3},
		{Tier: block.NumTiers, Depth: 2, Parent: 4, Keys: []block.Key{5}, Hashes: []uint64{6}},
	}
	long := kvindex.Held{Depth: 3, Parent: 6}
	for i := range 3*runBlocks + 5 {
		long.Keys, long.Hashes = append(long.Keys, block.Key(i+100)), append(long.Hashes, uint64(i+1000))
	}
	c.Runs = append(c.Runs, long)
	return c
}

func written(t testing.TB, all ...*kvfeed.Checkpoint) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := newWriter(&out, header{Router: "v", Created: 1})
	for _, c := range all {
		err = errors.Join(err, w.holder(c))
	}
	if err = errors.Join(err, w.skip(skippedHolder{Worker: "http://b:2", Why: "it is cold"}), w.close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestASnapshotIsReadAsItWasWritten(t *testing.T) {
	want := sample()
	want.Rank = 8 // vLLM's external load balancer numbers the ranks of a model over all workers
	r, err := newReader(bytes.NewReader(written(t, want)), 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := r.nextHolder()
	if err != nil {
		t.Fatal(err)
	}
	// Long runs are divided, and the parts follow each other.
	whole := got.Runs[:3:3]
	last := got.Runs[3]
	for _, part := range got.Runs[4:] {
		if part.Depth != last.Depth+len(last.Keys) || part.Parent != last.Hashes[len(last.Hashes)-1] {
			t.Errorf("a part at depth %d with parent %d", part.Depth, part.Parent)
		}
		last.Keys, last.Hashes = append(last.Keys, part.Keys...), append(last.Hashes, part.Hashes...)
	}
	got.Runs = append(whole, last)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, s, err := r.nextHolder(); err != nil || s == nil || s.Why != "it is cold" {
		t.Errorf("skipped: %+v, %v", s, err)
	}
	if _, _, err := r.nextHolder(); !errors.Is(err, io.EOF) || r.header.Router != "v" {
		t.Errorf("the end: %v, header %+v", err, r.header)
	}
}

func TestDamageIsNoticed(t *testing.T) {
	small := sample()
	small.Runs = small.Runs[:3]
	good := written(t, small)
	read := func(text []byte, room int64) error {
		r, err := newReader(bytes.NewReader(text), room)
		for err == nil {
			_, _, err = r.nextHolder()
		}
		return err
	}
	if err := read(good, 1<<20); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	for n := range good {
		if err := read(good[:n], 1<<20); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("cut after %d bytes: %v", n, err)
		}
		bad := bytes.Clone(good)
		bad[n] ^= 4
		if err := read(bad, 1<<20); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("byte %d is changed: %v", n, err)
		}
	}
	other := bytes.Clone(good)
	other[len(magic)] = 9
	for name, c := range map[string]struct {
		text []byte
		room int64
		want error
	}{
		"version": {other, 1 << 20, errVersion}, "foreign": {[]byte("listen: :8080\nworkers: []\n"), 1 << 20, errForeign},
		"empty": {nil, 1 << 20, errForeign}, "cut": {good[:len(good)-3], 1 << 20, errCut}, "large": {good, 400, errLarge},
	} {
		if err := read(c.text, c.room); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzReader reads any bytes, and loads what it finds into an index.
func FuzzReader(f *testing.F) {
	small := sample()
	small.Runs = small.Runs[:3]
	f.Add(written(f, small)[len(magic)+2:])
	h, err := block.NewHasher(block.XXH3, blockTokens)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		index := kvindex.New(h, kvindex.Config{Bytes: 1 << 20})
		r, err := newReader(bytes.NewReader(append([]byte(magic+"\x01\x00"), text...)), 1<<20)
		for err == nil {
			var c *kvfeed.Checkpoint
			if c, _, err = r.nextHolder(); c != nil {
				for i := range c.Runs {
					if index.Load(0, &c.Runs[i]) != nil {
						break
					}
				}
			}
		}
		// The runs of a section are read without its hash, too.
		for rest := text; len(rest) > 0; {
			run, after, ok := takeRun(rest)
			if !ok {
				break
			}
			_ = index.Load(1, &run)
			rest = after
		}
		if used := index.Stats().Bytes; used > 1<<20 {
			t.Errorf("the index takes %d bytes", used)
		}
	})
}

// twoEngines are an engine with a short replay and one without a replay.
func twoEngines(t *testing.T) []*engine {
	return []*engine{newEngine(t, "http://a:1", 1, 5), newEngine(t, "http://b:2", 2, 0)}
}

// warmSite is a site that has followed the engines from their start.
func warmSite(t *testing.T, engines ...*engine) *site {
	t.Helper()
	a := newSite(t, Config{}, engines...)
	for _, e := range engines {
		testenv.Until(t, "the router subscribes", func() bool { return e.Stats().Subscribers == 1 })
	}
	for _, e := range engines {
		e.cache(t, 1)
		if e.ReplayEndpoint() != "" { // the subscription may take effect only after the first message, which a replay has
			testenv.Until(t, "the first event to be applied", func() bool { return a.match(e, 0) == promptBlocks*blockTokens })
		}
		e.cache(t, 49)
	}
	a.awaitExact(engines...)
	for _, e := range engines {
		testenv.Until(t, "the last event to be applied", func() bool { return a.match(e, 49) == promptBlocks*blockTokens })
	}
	return a
}

func TestASiteIsExactByAPeer(t *testing.T) {
	engines := twoEngines(t)
	a := warmSite(t, engines...)
	b := newSite(t, Config{Peers: []string{a.admin.URL}}, engines[1], engines[0])
	b.awaitExact(engines[0])
	if got := b.match(engines[0], 3); got != promptBlocks*blockTokens {
		t.Errorf("%d tokens match at the engine with a replay", got)
	}
	testenv.Until(t, "the first snapshot to be logged", func() bool { return strings.Contains(a.log.String(), "gave a snapshot of the index") })
	if !strings.Contains(a.log.String(), "holders=1 of=1") {
		t.Error("the first snapshot has a holder that nothing can confirm yet")
	}
	if got := b.match(engines[1], 3); got != 0 {
		t.Errorf("%d tokens match at an engine that has confirmed nothing", got)
	}
	testenv.Until(t, "the second router subscribes", func() bool { return engines[1].Stats().Subscribers == 2 })
	engines[1].cache(t, 1)
	b.awaitExact(engines[1])
	for _, i := range []int{3, 50} {
		if got := b.match(engines[1], i); got != promptBlocks*blockTokens {
			t.Errorf("%d tokens of prompt %d match at the engine without a replay", got, i)
		}
	}
	if s := b.keeper.Stats(b.giver); s.Checkpoints.Confirmed != 2 || s.Checkpoints.Refused != 0 {
		t.Errorf("%+v", s)
	}
	if log := b.log.String(); strings.Contains(log, "KV events are lost") || !strings.Contains(log, "a checkpoint of it is looked for") {
		t.Errorf("the log of a normal start:\n%s", log)
	}
}

// A router loses messages of an engine without a replay endpoint. It asks its peer again, and is exact again.
func TestARouterAsksItsPeerAgainAfterALoss(t *testing.T) {
	e := newEngine(t, "http://b:2", 2, 0)
	a := warmSite(t, e)
	way, far := newRelay(t, e.Endpoint()), *e
	far.through = "tcp://" + way.Addr().String()
	b := newSite(t, Config{Peers: []string{a.admin.URL}}, &far)
	for loss := range 3 {
		testenv.Until(t, "the second router subscribes", func() bool { return e.Stats().Subscribers == 2 })
		first := e.at
		testenv.Until(t, "a message after the loss", func() bool { // the subscription takes effect a moment later
			for i := first; i < e.at; i++ {
				if b.match(e, i) > 0 {
					return true
				}
			}
			e.cache(t, 1)
			return false
		})
		last := e.at - 1
		testenv.Until(t, "the second router is exact", func() bool {
			return b.trusts()[e.url] == fleet.TrustExact && b.match(e, last) == promptBlocks*blockTokens
		})
		for i := range e.at {
			if got := b.match(e, i); got != promptBlocks*blockTokens {
				t.Errorf("after %d losses %d tokens of prompt %d match", loss, got, i)
			}
		}
		if s := b.keeper.Stats(b.giver); s.Checkpoints.Confirmed != uint64(loss)+1 {
			t.Errorf("after %d losses: %+v", loss, s)
		}
		way.setCut(true)
		testenv.Until(t, "the connection is gone", func() bool { return e.Stats().Subscribers == 1 })
		e.cache(t, 2) // only the peer gets them
		way.setCut(false)
	}
}

// All routers may have the same list of peers. A router notices that one of them is the router itself, says so once,
// and asks the others.
func TestARouterDoesNotAskItself(t *testing.T) {
	e := newEngine(t, "http://a:1", 1, 5)
	a := warmSite(t, e)
	b := newSite(t, Config{Peers: []string{"itself", a.admin.URL, "itself/"}}, e)
	b.awaitExact(e)
	const line = "index.peers names this router itself"
	b.stop()
	for range 10 { // in random order
		room := int64(1 << 30)
		b.keeper.ask(t.Context(), slices.Values(b.keeper.peers()), []kvfeed.Place{{Worker: "http://unknown"}}, map[kvfeed.Place]bool{}, &room)
	}
	if log := b.log.String(); strings.Count(log, line) != 1 || strings.Contains(log, "gave no whole snapshot") {
		t.Errorf("the log does not say it once:\n%s", log)
	}
	if s := b.keeper.Stats(b.giver); s.PeersFailed != 0 || s.GivenRefused != 0 || s.Given != 0 {
		t.Errorf("%+v", s)
	}
}

func TestAPeerThatCannotHelpCostsABoundedTime(t *testing.T) {
	e := newEngine(t, "http://a:1", 1, 5)
	e.cache(t, 20)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	serve := func(answer http.HandlerFunc) string {
		s := httptest.NewServer(answer)
		t.Cleanup(s.Close)
		return s.URL
	}
	good := written(t, sample())
	other := bytes.Clone(good)
	other[len(magic)] = 9
	cold := newSite(t, Config{}, e)
	peers := map[string]struct{ url, why string }{
		"dead":   {closed(t), "refused"},
		"silent": {"http://" + silent.Addr().String(), "index.peer_timeout"},
		"key": {serve(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "the admin key is wrong", http.StatusUnauthorized)
		}), "the admin key is wrong; give both routers the same admin key"},
		"foreign": {serve(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }), "no snapshot"},
		"version": {serve(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(other) }), "it is 9"},
		"cut":     {serve(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(good[:len(good)/2]) }), "cut short"},
		"endless": {serve(func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write(good[:len(good)/2])
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}), "index.peer_timeout"},
		"stranger": {serve(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(good) }), ""},
		"cold":     {cold.admin.URL, ""},
	}
	for name, p := range peers {
		t.Run(name, func(t *testing.T) {
			limit := time.Minute // so that no answer comes too late on a busy machine
			if p.why == "index.peer_timeout" {
				limit = 300 * time.Millisecond
			}
			b := newSite(t, Config{Peers: []string{p.url}, PeerTimeout: limit}, e)
			testenv.Until(t, "the history to be read", func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				return b.feed.Ready(ctx) == nil
			})
			testenv.Until(t, "the last prompt to match", func() bool { return b.match(e, 19) == promptBlocks*blockTokens })
			if !strings.Contains(b.log.String(), p.why) {
				t.Errorf("the log does not say %q:\n%s", p.why, b.log)
			}
			b.stop()
		})
	}
}

func TestSnapshotsAreGivenToFewAtATime(t *testing.T) {
	g := NewGiver(nil, "", "", nil)
	if !g.begin("a") || g.begin("a") || !g.begin("b") || g.begin("c") {
		t.Error("one to each peer, two at most")
	}
	g.end("a")
	if !g.begin("c") {
		t.Error("a place that is free is not given")
	}
	answer := httptest.NewRecorder()
	g.ServeHTTP(answer, httptest.NewRequest("GET", Path+"?holder=0@http://a", nil))
	if answer.Code != http.StatusServiceUnavailable || answer.Header().Get("Retry-After") == "" {
		t.Errorf("status %d", answer.Code)
	}
	answer = httptest.NewRecorder()
	g.ServeHTTP(answer, httptest.NewRequest("GET", Path+"?holder=http://a", nil))
	if answer.Code != http.StatusBadRequest || !strings.Contains(answer.Body.String(), "RANK@URL") {
		t.Errorf("status %d: %s", answer.Code, answer.Body)
	}
}

func TestTheFileIsReplacedAsAWholeOrNotAtAll(t *testing.T) {
	engines := twoEngines(t)
	a := warmSite(t, engines...)
	path := filepath.Join(t.TempDir(), "index")
	foreign := []byte("something else")
	if err := os.WriteFile(path, foreign, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := saveFile(t.Context(), path, a.feed, "v"); !errors.Is(err, errForeign) {
		t.Errorf("saved over a foreign file: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if n, blocks, err := saveFile(t.Context(), path, a.feed, "v"); n != 1 || blocks != 50*promptBlocks || err != nil {
		t.Errorf("%d holders, %d blocks, %v", n, blocks, err)
	}
	before, _ := os.ReadFile(path)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := saveFile(ended, path, a.feed, "v"); !errors.Is(err, context.Canceled) {
		t.Errorf("saved although the time is over: %v", err)
	}
	a.stop()
	if _, _, err := saveFile(t.Context(), path, a.feed, "v"); !errors.Is(err, errNothing) {
		t.Errorf("saved although the streams have ended: %v", err)
	}
	after, _ := os.ReadFile(path)
	left, _ := os.ReadDir(filepath.Dir(path))
	if len(before) == 0 || !bytes.Equal(after, before) || len(left) != 1 {
		t.Errorf("the file of %d bytes has %d now; %d files", len(before), len(after), len(left))
	}
	// An engine without a replay endpoint confirms no file.
	b := newSite(t, Config{SnapshotFile: path}, engines...)
	b.awaitExact(engines[0])
	testenv.Until(t, "the router subscribes", func() bool { return engines[1].Stats().Subscribers > 0 })
	engines[1].cache(t, 1)
	testenv.Until(t, "the message", func() bool { return b.match(engines[1], 50) > 0 })
	if got := b.match(engines[1], 3); got != 0 || b.trusts()[engines[1].url] == fleet.TrustExact {
		t.Errorf("%d tokens of the file match, trust %v", got, b.trusts()[engines[1].url])
	}
	if s := b.keeper.Stats(b.giver); s.Files != 1 || s.Checkpoints.Confirmed != 1 {
		t.Errorf("%+v", s)
	}
}

func TestTheConfigSaysAllThatIsWrong(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	err := Config{Peers: []string{"router:9090", "http://a/b"}, SnapshotInterval: -1, SnapshotFile: "/no/such/folder/file"}.Validate()
	for _, want := range []string{"peers[0]: ", "peers[1]: ", "peer_timeout: ", "snapshot_interval: ", "snapshot_file: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no problem %s in %v", want, err)
		}
	}
}
