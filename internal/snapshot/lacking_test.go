package snapshot

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvfeed"
	"github.com/warmpath/warmpath/test/testenv"
)

// askedPeer is a peer that has no checkpoints. It notes for which holders it is asked.
type askedPeer struct {
	*httptest.Server
	mu    sync.Mutex // guards asked
	asked [][]string // the holders of each request
}

func newAskedPeer(t *testing.T) *askedPeer {
	t.Helper()
	p := &askedPeer{}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		holders := r.URL.Query()["holder"]
		p.mu.Lock()
		p.asked = append(p.asked, holders)
		p.mu.Unlock()
		out, err := newWriter(w, header{Router: "v"})
		for _, h := range holders {
			_, url, _ := strings.Cut(h, "@")
			if err == nil {
				err = out.skip(skippedHolder{Worker: url, Why: "it is cold"})
			}
		}
		if err == nil {
			err = out.close()
		}
		if err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(p.Close)
	return p
}

// lackingKeeper is a keeper whose feed follows n engines without a replay endpoint. Each has sent a message after an
// unknown history. Neither Run nor the start was called.
func lackingKeeper(t *testing.T, n int, log *slog.Logger, peers ...string) *Keeper {
	t.Helper()
	f := fleet.New(fleet.Config{})
	router, err := warmpath.New(warmpath.Options{Fleet: f, SpeculativeTTL: -1, ApproximateTTL: -1})
	if err != nil {
		t.Fatal(err)
	}
	feed := kvfeed.New(router, kvfeed.Config{}, slog.New(slog.DiscardHandler))
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	k := NewKeeper(Config{Peers: peers, PeerTimeout: time.Minute}, Parts{Feed: feed, Client: client, Name: "keeper", Version: "test", Room: 1 << 30, Log: log})
	feed.Release()
	e := newEngine(t, "", 1, 0) // all streams follow the same one
	e.cache(t, 1)
	var urls []string
	for i := range n {
		urls = append(urls, fmt.Sprint("http://w:", i+1))
	}
	f.Expect(urls, "")
	for _, url := range urls {
		f.Put(url, fleet.Facts{
			Engine: fleet.EngineVLLM, Version: "0.32.0", Models: []fleet.Model{{ID: "m"}}, BlockSize: blockTokens, Ranks: 1,
			Events: []fleet.EventSource{{Endpoint: e.Endpoint()}},
		})
	}
	running(t, feed.Run)
	testenv.Until(t, "all streams begin", func() bool { return e.Stats().Subscribers == n })
	testenv.Until(t, "all streams have a message", func() bool {
		e.cache(t, 1) // a subscription takes effect only a moment later
		return !slices.ContainsFunc(feed.Stats(), func(s kvfeed.Stats) bool { return s.Messages == 0 })
	})
	return k
}

// More holders lack a checkpoint than one request may name. Each of them is asked for before one is asked for again.
func TestManyHoldersAreAskedForWithoutAPause(t *testing.T) {
	const n = 2*mostAsked + 50
	peer, log := newAskedPeer(t), new(testenv.Buffer)
	k := lackingKeeper(t, n, slog.New(slog.NewTextHandler(log, nil)), peer.URL)
	for range 3 {
		k.askForLacking(t.Context())
	}
	peer.mu.Lock()
	defer peer.mu.Unlock()
	holders := map[string]bool{}
	for _, asked := range peer.asked {
		for _, h := range asked {
			holders[h] = true
		}
	}
	if len(peer.asked) != 3 || len(holders) != n {
		t.Errorf("%d requests name %d holders of %d", len(peer.asked), len(holders), n)
	}
	if text := log.String(); strings.Contains(text, "a peer gave a snapshot") {
		t.Errorf("each request for holders that are lacking has a line:\n%s", text)
	}
}

// A peer that has nothing of what is wanted changes nothing about what the next peer is asked for.
func TestTheNextPeerIsAskedForTheSameHolders(t *testing.T) {
	answers := func(skips int) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			out, err := newWriter(w, header{})
			for i := range skips {
				if err == nil {
					err = out.skip(skippedHolder{Worker: fmt.Sprint("http://w:", i), Why: "it is cold"})
				}
			}
			if err == nil {
				err = out.close()
			}
			if err != nil {
				t.Error(err)
			}
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	second := newAskedPeer(t)
	k := lackingKeeper(t, 1, slog.New(slog.DiscardHandler))
	for i, c := range []struct {
		first  string
		places []kvfeed.Place
		want   []string
	}{
		{answers(0), []kvfeed.Place{{Worker: "http://w:1"}, {Worker: "http://w:2", Rank: 1}}, []string{"0@http://w:1", "1@http://w:2"}},
		{answers(0), nil, nil},
		{answers(mostAsked + 10), nil, nil},
	} {
		room := int64(1 << 20)
		k.ask(t.Context(), slices.Values([]string{c.first, second.URL}), c.places, map[kvfeed.Place]bool{}, &room)
		second.mu.Lock()
		if len(second.asked) != i+1 || !slices.Equal(second.asked[i], c.want) {
			t.Errorf("the second peer is asked for %v, want %v", second.asked, c.want)
		}
		second.mu.Unlock()
	}
}
