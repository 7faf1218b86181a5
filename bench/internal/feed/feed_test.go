package feed

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/warmpath/warmpath/bench/internal/synth"
	"github.com/warmpath/warmpath/bench/internal/trace"
	"github.com/warmpath/warmpath/kvindex"
)

// TestAnswersAreExact replays small traces twice: with whole events, and with events that are cut to at most 3 blocks.
func TestAnswersAreExact(t *testing.T) {
	lru := synth.LRUConfig{Seed: 8, Workers: 5, Conversations: 30, Capacity: 500, Stored: 20_000, MinLen: 4, MaxLen: 60, Probes: 10}
	hard := synth.DefaultHard
	hard.Stored, hard.Capacity, hard.Conversations = 60_000, 1500, 50
	version1 := hard
	version1.Version1 = true
	for name, write := range map[string]func(*os.File) (trace.Header, error){
		"lru":       func(f *os.File) (trace.Header, error) { return synth.LRU(f, lru) },
		"hard":      func(f *os.File) (trace.Header, error) { return synth.Hard(f, hard) },
		"version 1": func(f *os.File) (trace.Header, error) { return synth.Hard(f, version1) },
	} {
		for _, split := range []int{0, 3} {
			t.Run(name, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "trace")
				f, err := os.Create(path)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				if _, err := write(f); err != nil {
					t.Fatal(err)
				}
				replayExactly(t, path, split)
			})
		}
	}
}

func replayExactly(t *testing.T, path string, split int) {
	t.Helper()
	tr, err := trace.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	x, err := New(int(tr.BlockSize))
	if err != nil {
		t.Fatal(err)
	}
	var matches []kvindex.Match
	depths := make([]uint16, tr.Workers)
	r := tr.Reader()
	for n := 1; r.Next(); n++ {
		if !r.Record.IsQuestion() {
			x.Split(x.Event(&r.Record, nil), split, func(e Event) { x.Apply(&e) })
			continue
		}
		q := x.Question(&r.Record, 0)
		if !slices.Equal(x.Chain(&q, nil), q.Keys()) {
			t.Fatalf("record %d: chained again, the keys differ", n)
		}
		if !slices.Equal(x.Hash(&q, nil), q.Keys()) {
			t.Fatalf("record %d: hashed again, the keys differ", n)
		}
		matches = x.Match(q.Keys(), matches[:0])
		if Depths(matches, depths); !slices.Equal(depths, q.Depths) {
			t.Fatalf("record %d: depths %v, exact %v", n, depths, q.Depths)
		}
	}
	if r.Err() != nil {
		t.Fatal(r.Err())
	}
}
