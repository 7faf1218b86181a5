package snapshot

import (
	"context"
	"fmt"
	"iter"
	"strings"
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
