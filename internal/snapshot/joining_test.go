package snapshot

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/warmpath/warmpath/kvfeed"
)

// A router that starts hears of its peers one by one. Some are cold, one fails, and one is warm.
func TestAStartAsksThePeersOfWhichItHearsLater(t *testing.T) {
	e := newEngine(t, "http://w:1", 1, 10)
	a := newSite(t, Config{}, e)
	e.cache(t, 3)
	a.awaitExact(e)
	cold, known := newAskedPeer(t), newAskedPeer(t)
	k, text := askingKeeper(t)
	k.config.Peers = []string{known.URL}
	k.Joining = func(context.Context) iter.Seq[string] {
		return func(yield func(string) bool) {
			for _, peer := range []string{known.URL, cold.URL, closed(t)} {
				if !yield(peer) {
					t.Errorf("after %s, which has nothing, no other peer is asked", peer)
					return
				}
			}
			if yield(a.admin.URL) {
				t.Error("a router that has all it wants listens for more peers")
			}
		}
	}
	k.warm(t.Context())
	for name, peer := range map[string]*askedPeer{"known": known, "cold": cold} {
		if len(peer.asked) != 1 {
			t.Errorf("the %s peer is asked %d times", name, len(peer.asked))
		}
	}
	if all := text.String(); !strings.Contains(all, fmt.Sprintf("peer=%s holders=1 skipped=0", a.admin.URL)) {
		t.Errorf("the start takes no index of the warm peer:\n%s", all)
	}
	if k.offered[kvfeed.Place{Worker: e.url}] == "" {
		t.Error("the feed has no checkpoint")
	}
}

// A warm peer gives two snapshots at a time. Of three routers that start at once beside it, one is refused at first.
func TestAStartAsksABusyPeerAgain(t *testing.T) {
	e := newEngine(t, "http://w:1", 1, 10)
	a := newSite(t, Config{}, e)
	e.cache(t, 3)
	a.awaitExact(e)
	var asked atomic.Int64
	busy := server(t, false, func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		a.giver.ServeHTTP(w, r)
	})
	k, text := askingKeeper(t)
	k.Others = func() []string { return []string{busy} }
	k.Joining = func(context.Context) iter.Seq[string] { return slices.Values([]string{busy}) }
	k.warm(t.Context())
	if n := asked.Load(); n != 2 || k.offered[kvfeed.Place{Worker: e.url}] == "" {
		t.Errorf("a busy peer is asked %d times:\n%s", n, text)
	}
}
