package kvfeed

import (
	"fmt"
	"testing"
)

// followedPlaces returns the feed of a fleet of n workers that are followed. No stream runs.
func followedPlaces(t testing.TB, n int) (feed *Feed, all []Place) {
	t.Helper()
	r := newRig(t, Config{})
	urls := make([]string, n)
	for i := range urls {
		urls[i] = fmt.Sprint("http://w:", i)
	}
	r.fleet.Expect(urls, "")
	for _, w := range r.fleet.Snapshot().Workers() {
		r.feed.streams[w.Holders[0]] = &follower{stream: &stream{url: w.URL, holder: w.Holders[0]}}
		all = append(all, Place{w.URL, 0})
	}
	return r.feed, all
}

// A snapshot looks each of its holders up, so a look-up must not copy or scan all streams.
func TestAHolderIsFoundWithoutTheOthers(t *testing.T) {
	feed, all := followedPlaces(t, 100)
	for _, at := range all {
		if f := feed.at(at); f == nil || f.url != at.Worker {
			t.Fatalf("%v is not found", at)
		}
	}
	for _, at := range []Place{{"http://w:100", 0}, {"http://w:1/", 0}, {"http://w:1", 1}, {"http://w:1", -1}, {"", 0}} {
		if feed.at(at) != nil {
			t.Errorf("%v is found", at)
		}
	}
	if n := testing.AllocsPerRun(100, func() { feed.at(all[50]) }); n != 0 {
		t.Errorf("a look-up allocates %v times", n)
	}
	id, _ := feed.fleet.Find(all[1].Worker)
	feed.fleet.Remove(id)
	if feed.at(all[1]) != nil {
		t.Error("a worker that left is found")
	}
}

// BenchmarkAt looks all holders of a feed up.
func BenchmarkAt(b *testing.B) {
	for _, n := range []int{1000, 8000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			feed, all := followedPlaces(b, n)
			for b.Loop() {
				for _, at := range all {
					if feed.at(at) == nil {
						b.Fatal(at)
					}
				}
			}
		})
	}
}
