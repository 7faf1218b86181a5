package sharedindex

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/valkey-io/valkey-go"
	"go.uber.org/goleak"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/kvindex/kvindextest"
	"github.com/warmpath/warmpath/test/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// onEach runs a test on each kind of server.
func onEach(t *testing.T, test func(t *testing.T, server *testenv.ValkeyServer)) {
	for _, kind := range testenv.ValkeyKinds {
		t.Run(kind, func(t *testing.T) { test(t, testenv.StartValkey(t, kind)) })
	}
}

// fleetOf returns a fleet of n workers with one rank each. Their holders are 0 to n-1.
func fleetOf(n int) *fleet.Fleet {
	f := fleet.New(fleet.Config{})
	for i := range n {
		f.Put(fmt.Sprintf("http://worker-%d", i), fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "m"}}, BlockSize: 16})
	}
	return f
}

// anyKeys is ReaderParts.Keying of a router without an index, so keys are not compared.
func anyKeys(string) (block.Algorithm, int, bool) { return 0, 0, false }

// bench is a writer and a reader on one server, without goroutines of their own: a test decides when they do a step.
type bench struct {
	tb     testing.TB
	client valkey.Client
	server *testenv.ValkeyServer
	fleet  *fleet.Fleet
	number atomic.Int64
	cache  int64
	prefix string // of the keys of all indexes; "": each has another one
}

func newBench(tb testing.TB, s *testenv.ValkeyServer, holders int) *bench {
	tb.Helper()
	cfg := DefaultConfig()
	cfg.URL = "valkey://" + s.Address
	o, err := cfg.options(nil)
	if err != nil {
		tb.Fatal(err)
	}
	o.ConnWriteTimeout = time.Minute
	client, err := valkey.NewClient(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(client.Close)
	return &bench{tb: tb, client: client, server: s, fleet: fleetOf(holders)}
}

// mirrored is an index with a writer, and a reader of what the writer has written.
type mirrored struct {
	bench  *bench
	index  *kvindex.Index
	hasher *block.Hasher
	writer *Writer
	reader *Reader
}

// mirror makes an index that is mirrored under a prefix of its own.
func (b *bench) mirror(h *block.Hasher, cfg kvindex.Config) *mirrored {
	n := b.number.Add(1)
	c := DefaultConfig()
	c.URL, c.Prefix, c.ClientCache = "valkey://x", cmp.Or(b.prefix, fmt.Sprintf("%d:", n)), b.cache
	c.Timeout, c.Lease, c.TTL = time.Minute, time.Hour, 24*time.Hour // the machine may be busy, and no time matters here
	m := &mirrored{bench: b, hasher: h}
	m.writer = NewWriter(c, WriterParts{Fleet: b.fleet, Algorithm: h.Algorithm(), Log: slog.New(slog.DiscardHandler),
		TellAgain: func(_ uint64, holder fleet.Holder, from int) int { return m.index.TellAgain(holder, from) }})
	m.reader = NewReader(c, ReaderParts{Fleet: b.fleet, Keying: anyKeys, Log: slog.New(slog.DiscardHandler)})
	m.reader.client.Store(&b.client)
	cfg.Changed = m.writer.IndexChanged(warmpath.MadeIndex{Model: "m", BlockSize: h.Size(), Generation: uint64(n)})
	m.index = kvindex.New(h, cfg)
	if err := m.writer.begin(context.Background(), b.client); err != nil {
		panic(err)
	}
	return m
}

// settle lets the writer write everything, and lets the reader see it.
func (m *mirrored) settle() {
	ctx := context.Background()
	for busy := true; busy; {
		var err error
		if busy, err = m.writer.step(ctx, m.bench.client); err != nil {
			panic(err)
		}
	}
	if err := m.reader.follow(ctx, m.bench.client); err != nil {
		panic(err)
	}
}

// match looks keys up in the shared index.
func (m *mirrored) match(keys []block.Key, dst []kvindex.Match) []kvindex.Match {
	q := warmpath.Lookup{Model: "m", BlockSize: m.hasher.Size(), Algorithm: m.hasher.Algorithm(), Keys: keys}
	if err := m.reader.Match(context.Background(), &q); err != nil {
		panic(err)
	}
	return append(dst, q.Matches...)
}

// door returns the index as the suites of kvindextest use it: Match asks the shared index.
func (m *mirrored) door() *kvindextest.Door {
	settled := false
	changed := func() { settled = false }
	return &kvindextest.Door{
		Store:  func(h fleet.Holder, s *kvindex.Stored) { changed(); m.index.Store(h, s) },
		Remove: func(h fleet.Holder, t block.Tier, g int, hashes []uint64) { changed(); m.index.Remove(h, t, g, hashes) },
		Clear:  func(h fleet.Holder, t block.Tier) { changed(); m.index.Clear(h, t) },
		Forget: func(h fleet.Holder) { changed(); m.index.Forget(h) },
		Stats:  m.index.Stats,
		Match: func(keys []block.Key, dst []kvindex.Match) []kvindex.Match {
			if !settled {
				m.settle()
				settled = true
			}
			return m.match(keys, dst)
		},
	}
}
