package snapshot

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/kvfeed"
	"github.com/warmpath/warmpath/test/testenv"
)

// mute is a peer that accepts connections and says nothing.
func mute(t *testing.T) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return "http://" + l.Addr().String()
}

// A peer that sends nothing, or stops in the middle, costs the limit for silence and not index.peer_timeout.
func TestASilentPeerCostsLittle(t *testing.T) {
	e := newEngine(t, "http://a:1", 1, 100)
	e.cache(t, 20)
	half := written(t, sample())
	stops := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(half[:len(half)/2])
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(stops.Close)
	for name, peer := range map[string]string{"silent": mute(t), "stops": stops.URL} {
		b := newSiteWith(t, Config{Peers: []string{peer}, PeerTimeout: time.Hour}, 50*time.Millisecond, e)
		b.awaitExact(e)
		if text := b.log.String(); !strings.Contains(text, "it sends nothing for 50ms") {
			t.Errorf("%s: the log does not say why:\n%s", name, text)
		}
		b.stop()
	}
	if k := NewKeeper(Config{}, Parts{}); k.silence != 2*time.Second {
		t.Errorf("a silent peer costs %v, docs/warm-start.md says 2 s", k.silence)
	}
}

// The time that this router takes for what a peer has sent is no silence of the peer.
func TestOnlyTheTimeOfThePeerIsSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, heard, end := attend(t.Context(), peerSilence)
		defer end()
		testenv.Pass(peerSilence - time.Millisecond)
		heard.hear(strings.NewReader("ab"))
		for range 2 {
			testenv.Pass(time.Minute)
			if n, err := heard.Read(make([]byte, 1)); n != 1 || err != nil || ctx.Err() != nil {
				t.Fatal(n, err, context.Cause(ctx))
			}
		}
	})
}

// While a peer is asked and says nothing, the file is written.
func TestTheFileIsWrittenWhileAPeerSaysNothing(t *testing.T) {
	var asked atomic.Bool
	peer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get(replayOnly) == "" {
			asked.Store(true)
			<-r.Context().Done()
			return
		}
		out, err := newWriter(w, header{})
		if err == nil {
			err = out.close()
		}
		if err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(peer.Close)
	whole, lacks := newEngine(t, "http://a:1", 1, 100), newEngine(t, "http://b:2", 2, 0)
	whole.cache(t, 3)
	lacks.cache(t, 3)
	cfg := Config{Peers: []string{peer.URL}, PeerTimeout: time.Hour, SnapshotFile: filepath.Join(t.TempDir(), "index"), SnapshotInterval: 10 * time.Millisecond}
	s := newSiteWith(t, cfg, time.Hour, whole, lacks)
	s.awaitExact(whole)
	testenv.Until(t, "the peer is asked", func() bool {
		lacks.cache(t, 1)
		return asked.Load()
	})
	saved := func() uint64 { return s.keeper.Stats(s.giver).Saved }
	before := saved()
	testenv.Until(t, "the file is written", func() bool { return saved() >= before+3 })
	if n := s.keeper.Stats(s.giver).PeersFailed; n != 0 {
		t.Errorf("the peer has failed %d times meanwhile", n)
	}
	s.stop()
}

// The last writing comes after a regular one that is under way, and does not wait for it longer than it may take.
func TestTheLastWriteComesAfterARunningOne(t *testing.T) {
	e := newEngine(t, "http://a:1", 1, 5)
	s := newSite(t, Config{SnapshotFile: filepath.Join(t.TempDir(), "index")}, e)
	e.cache(t, 3)
	s.awaitExact(e)
	s.keeper.writing <- struct{}{} // a regular writing
	s.keeper.lastSave = 20 * time.Millisecond
	s.keeper.Save(t.Context())
	if got := s.keeper.Stats(s.giver); got.Saved != 0 || got.SavesFailed != 1 || !strings.Contains(s.log.String(), "another writing is under way") {
		t.Errorf("%+v\n%s", got, s.log)
	}
	s.keeper.lastSave = time.Minute
	var saving sync.WaitGroup
	saving.Go(func() { s.keeper.Save(t.Context()) })
	if got := s.keeper.Stats(s.giver); got.Saved != 0 {
		t.Error("the file is written by two at once")
	}
	<-s.keeper.writing
	saving.Wait()
	if got := s.keeper.Stats(s.giver); got.Saved != 1 {
		t.Errorf("%+v\n%s", got, s.log)
	}
}

// A peer that failed comes last, and is not asked for single holders for a while. The log says why it failed once.
func TestAPeerThatFailedIsLeftAloneForAWhile(t *testing.T) {
	log := new(testenv.Buffer)
	good, requests := newAskedPeer(t), new(atomic.Int64)
	bad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		http.Error(w, "broken", http.StatusInternalServerError)
	}))
	t.Cleanup(bad.Close)
	k := lackingKeeper(t, 1, slog.New(slog.NewTextHandler(log, nil)), bad.URL, good.URL)
	lastly := time.Now()
	testenv.Until(t, "the good peer is asked again", func() bool {
		k.askForLacking(t.Context())
		good.mu.Lock()
		defer good.mu.Unlock()
		return len(good.asked) >= 3
	})
	if n := requests.Load(); n != 1 && time.Since(lastly) < failedPause {
		t.Errorf("the peer that failed is asked %d times", n)
	}
	for range 20 { // in random order
		if all := k.peers(); len(all) != 2 || all[1] != bad.URL {
			t.Fatalf("the order of the peers is %v", all)
		}
	}
	for range 3 {
		room := int64(1 << 20)
		k.ask(t.Context(), slices.Values(k.peers()), []kvfeed.Place{{Worker: "http://w:1"}}, map[kvfeed.Place]bool{}, &room)
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings:\n%s", n, log)
	}
	k.config.Peers = []string{bad.URL}
	if until := time.Until(k.askForLacking(t.Context())); until <= 0 || until > failedPause {
		t.Errorf("the only peer has failed, and is asked again after %v", until)
	}
	k.config.Peers = []string{good.URL}
	if k.peers(); len(k.failures) != 0 {
		t.Error("the failure of a peer that is gone is kept")
	}
}

// A giver gives a peer one snapshot at a time. A router that asks again at once is not refused.
func TestARequestEndsWhenThePeerHasFinished(t *testing.T) {
	var finished atomic.Bool
	peer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		finished.Store(false)
		fmt.Fprintf(w, "%s", written(t))
		_ = http.NewResponseController(w).Flush()
		<-time.After(20 * time.Millisecond)
		finished.Store(true)
	}))
	t.Cleanup(peer.Close)
	k := lackingKeeper(t, 1, slog.New(slog.DiscardHandler), peer.URL)
	for range 3 {
		room := int64(1 << 20)
		if _, err := k.fetch(t.Context(), peer.URL, nil, map[kvfeed.Place]bool{}, &room); err != nil || !finished.Load() {
			t.Fatalf("finished %v, %v", finished.Load(), err)
		}
	}
}
