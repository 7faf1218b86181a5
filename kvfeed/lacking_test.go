package kvfeed

import (
	"fmt"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

// lackingFeed is a feed with n connected holders without a replay, which have had a message after an unknown history.
func lackingFeed(n int) (feed *Feed, of map[Place]*follower) {
	feed, of = &Feed{streams: map[fleet.Holder]*follower{}}, map[Place]*follower{}
	for i := range n {
		q := &sequence{connected: true}
		q.kept.messages = map[uint64]waiting{0: {}}
		f := &follower{stream: &stream{url: fmt.Sprint("http://w:", i)}, sequence: q}
		feed.streams[fleet.Holder(i)], of[Place{Worker: f.url}] = f, f
	}
	return feed, of
}

// A caller that asks for 256 holders at a time gets each holder of 2,000 at its first turn: a holder that was not
// returned was not asked for, and does not wait.
func TestOnlyTheHoldersThatAreReturnedCountAsAskedFor(t *testing.T) {
	const n, limit = 2000, 256
	feed, of := lackingFeed(n)
	now := time.Unix(1000, 0)
	for calls := 0; len(of) > 0; calls++ {
		if calls > n/limit {
			t.Fatalf("%d holders are left after %d calls", len(of), calls)
		}
		places, next := feed.Lacking(now, limit)
		for _, p := range places {
			if of[p] == nil {
				t.Fatalf("%v is asked for twice", p)
			}
			of[p].sequence.whole = true // the peer has it
			delete(of, p)
		}
		if len(places) == 0 || len(places) > limit || len(of) > 0 && next.After(now) {
			t.Fatalf("%d holders, %d are left, the next question is due at %v", len(places), len(of), next)
		}
	}
	if places, next := feed.Lacking(now.Add(time.Hour), limit); len(places) > 0 || !next.IsZero() {
		t.Errorf("all histories are whole, and %d holders are asked for, the next at %v", len(places), next)
	}
}

// A holder that waits longer comes before one that was asked for already, and a call without a limit counts nothing.
func TestTheHoldersThatHaveWaitedLongestComeFirst(t *testing.T) {
	feed, _ := lackingFeed(10)
	now := time.Unix(1000, 0)
	if places, next := feed.Lacking(now, 0); len(places) > 0 || !next.Equal(now) {
		t.Errorf("%d holders, the next question is due at %v", len(places), next)
	}
	seen := map[Place]int{}
	for range 5 {
		places, _ := feed.Lacking(now, 4)
		for _, p := range places {
			seen[p]++
		}
		now = now.Add(firstPause)
	}
	if len(seen) != 10 {
		t.Errorf("of 10 holders %d were asked for in 5 calls for 4 each: %v", len(seen), seen)
	}
}

// Holders that no peer knows are asked for once a minute, and few questions have many holders: a router with 2,000
// of them looks at its streams little more often than each second.
func TestHoldersThatNobodyKnowsCostLittle(t *testing.T) {
	for n, most := range map[int]int{8: 5, 256: 10, 2000: 32} {
		feed, of := lackingFeed(n)
		now := time.Unix(1000, 0)
		i := 0
		for _, f := range of { // each began at another moment of the last minute
			f.asked = asked{times: 20, next: now.Add(time.Duration(i) * time.Minute / time.Duration(n))}
			i++
		}
		calls, asks, holders := 0, 0, 0
		for end := now.Add(time.Minute); now.Before(end); calls++ {
			places, next := feed.Lacking(now, 256)
			if holders += len(places); len(places) > 0 {
				asks++
			}
			if next.IsZero() {
				t.Fatal("nobody lacks anything")
			}
			look := now.Truncate(time.Second).Add(time.Second) // a keeper looks each second
			if now = next; look.Before(next) {
				now = look
			}
		}
		if calls > 60+most || asks > most || holders < n || holders > 3*n/2 {
			t.Errorf("%d holders: %d calls, %d questions about %d holders in a minute", n, calls, asks, holders)
		}
		t.Logf("%d holders: %d calls, %d questions about %d holders in a minute", n, calls, asks, holders)
	}
}
