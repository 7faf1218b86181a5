package synth

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/warmpath/warmpath/bench/internal/naive"
	"github.com/warmpath/warmpath/bench/internal/trace"
)

// write calls generate with a new file in a temporary folder. It returns the path and the SHA-256 of the file.
func write(t *testing.T, generate func(io.WriteSeeker) (trace.Header, error)) (path, sum string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "test.trace")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := generate(f); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(data)
	return path, hex.EncodeToString(digest[:])
}

// TestLRUBytes checks that the bytes of the traces have not changed, so that old and new results are for the same
// workload. With WARMPATH_BENCH_FULL=1 it also makes the large traces, which takes about 10 s.
func TestLRUBytes(t *testing.T) {
	small := LRUConfig{Seed: 7, Workers: 5, Conversations: 20, Capacity: 300, Stored: 3000, MinLen: 4, MaxLen: 40, Probes: 20}
	mem1m, shared := DefaultLRU, DefaultLRU
	mem1m.Capacity, mem1m.Stored, mem1m.Seed = 0, 1_000_000, 43
	shared.Same, shared.Capacity, shared.Stored, shared.Seed, shared.Conversations = true, 0, 60_000, 44, 100
	for _, test := range []struct {
		name   string
		config LRUConfig
		large  bool
		sum    string
	}{
		{"small", small, false, "5e8bff6cb546ad02cba3f5cbfcefcadf8eadf152914f6fb3bef5b121a468a81e"},
		{"shared", shared, false, "a8bb629fac2ddeed0c080be128e70a59c086ff70aa8818a6ff01c77f2d884f4f"},
		{"mem1m", mem1m, true, "7aebd8b2e39fbd85faf2d108c5fff305733be1ee28d918e0b2b9eb840f3f6bab"},
		{"main", DefaultLRU, true, "2c288f520020239a0977ceaad65321f2783393bf9134ad02e07c56178ce11c9f"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.large && os.Getenv("WARMPATH_BENCH_FULL") == "" {
				t.Skip("skipped: set WARMPATH_BENCH_FULL=1 to make the large traces")
			}
			_, sum := write(t, func(to io.WriteSeeker) (trace.Header, error) { return LRU(to, test.config) })
			if sum != test.sum {
				t.Errorf("SHA-256 %s, want %s", sum, test.sum)
			}
		})
	}
}

// TestAnswersAreExact replays traces of all kinds into a naive set.
func TestAnswersAreExact(t *testing.T) {
	lru := LRUConfig{Seed: 8, Workers: 3, Conversations: 20, Capacity: 300, Stored: 20000, MinLen: 4, MaxLen: 40}
	hard := DefaultHard
	hard.Stored, hard.Capacity, hard.Conversations = 30000, 600, 60
	version1 := hard
	version1.Version1 = true
	for name, make := range map[string]func(io.WriteSeeker) (trace.Header, error){
		"lru":       func(to io.WriteSeeker) (trace.Header, error) { return LRU(to, lru) },
		"hard":      func(to io.WriteSeeker) (trace.Header, error) { return Hard(to, hard) },
		"version 1": func(to io.WriteSeeker) (trace.Header, error) { return Hard(to, version1) },
	} {
		t.Run(name, func(t *testing.T) {
			path, _ := write(t, make)
			tr, err := trace.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer tr.Close()
			set := naive.New(int(tr.Workers))
			questions := 0
			r := tr.Reader()
			for r.Next() {
				rec := &r.Record
				if !rec.IsQuestion() {
					set.Apply(rec)
					continue
				}
				questions++
				for w, want := range set.Depths(rec.Keys, nil) {
					if rec.Depths[w] != want {
						t.Fatalf("question %d, worker %d: the file says %d, counting says %d", questions, w, rec.Depths[w], want)
					}
				}
			}
			if r.Err() != nil || questions == 0 {
				t.Fatalf("%d questions, error %v", questions, r.Err())
			}
		})
	}
}

// TestHardTracesHaveTrouble checks that a trace contains each behaviour in Trouble.
func TestHardTracesHaveTrouble(t *testing.T) {
	c := DefaultHard
	c.Stored, c.Capacity, c.Conversations = 100000, 2000, 50
	path, _ := write(t, func(to io.WriteSeeker) (trace.Header, error) { return Hard(to, c) })
	tr, err := trace.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	var double, cut, forgotten, holes int
	set := naive.New(int(tr.Workers))
	r := tr.Reader()
	for r.Next() {
		rec := &r.Record
		switch {
		case rec.IsStore():
			for _, engineHash := range rec.EngineHashes {
				if set.Copies(int(rec.Worker), engineHash) > 0 {
					double++
				}
			}
			if rec.Units > 1 {
				cut++
			}
		case rec.Kind == trace.Forgotten:
			forgotten++
		case rec.IsQuestion():
			for w, depth := range rec.Depths {
				for i := int(depth); i < len(rec.Keys); i++ {
					if set.Depths(rec.Keys[i:i+1], nil)[w] > 0 {
						holes++
						break
					}
				}
			}
		}
		if !rec.IsQuestion() {
			set.Apply(rec)
		}
	}
	if r.Err() != nil {
		t.Fatal(r.Err())
	}
	t.Logf("stored twice %d, re-cut events %d, forgotten workers %d, questions that meet a hole %d", double, cut, forgotten, holes)
	if double < 100 || cut < 100 || forgotten < 2 || holes < 100 {
		t.Error("too little trouble")
	}
}
