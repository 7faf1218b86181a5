package sharedindex

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/test/testenv"
)

// filled returns a shared index in which each of some prompts of 512 blocks is at each of 8 holders. The prompts have
// the first 20 blocks in common.
func filled(b testing.TB, kind string, prompts int) (*mirrored, [][]block.Key) {
	b.Helper()
	h, err := block.NewHasher(block.XXH3, 16)
	if err != nil {
		b.Fatal(err)
	}
	bench := newBench(b, testenv.StartValkey(b, kind), 8)
	m := bench.mirror(h, kvindex.Config{})
	r := rand.New(rand.NewPCG(1, 2))
	var all [][]block.Key
	hash := uint64(0)
	for range prompts {
		tokens := make([]block.Token, 512*16)
		for i := range tokens {
			if i >= 20*16 {
				tokens[i] = r.Uint32()
			}
		}
		all = append(all, h.Append(nil, h.Root(block.Scope{}), 0, tokens, nil))
		for holder := range fleet.Holder(8) {
			s := kvindex.Stored{Tokens: tokens, BlockSize: 16}
			for range 512 {
				hash++
				s.Hashes = append(s.Hashes, hash)
			}
			m.index.Store(holder, &s)
		}
		m.settle()
	}
	return m, all
}

// learn adds two workers without events, each with the prompts as learned placements, and lets the reader see them.
func learn(tb testing.TB, m *mirrored, prompts [][]block.Key) {
	tb.Helper()
	const ttl = time.Hour
	ctx, f := context.Background(), m.bench.fleet
	p := NewPlacements(m.reader.config, PlacementsParts{Fleet: f, Algorithm: block.XXH3, TTL: ttl, Log: slog.New(slog.DiscardHandler)})
	scripts, err := loadScripts(ctx, m.bench.client)
	if err != nil {
		tb.Fatal(err)
	}
	for n := range 2 {
		url := fmt.Sprint("http://silent-", n)
		f.Put(url, fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "m"}}, BlockSize: 16})
		id, _ := f.Find(url)
		f.SetTrust(f.Snapshot().ByID(id).Holders[0], fleet.TrustApproximate, "test")
		signs, _, _ := f.Signs(id)
		holder := placedHolder(processName(signs), 0, 16, block.XXH3, url)
		for _, keys := range prompts {
			if err := p.write(ctx, m.bench.client, scripts, []placed{{worker: url, id: id, size: 16, keys: keys}}, []string{holder}); err != nil {
				tb.Fatal(err)
			}
		}
	}
	m.reader.parts.LearnedTTL = ttl
	m.settle()
}

func BenchmarkLookup(b *testing.B) { benchmarkLookup(b, 8, func(*mirrored, [][]block.Key) {}) }

// Two workers more have learned placements.
func BenchmarkLookupWithLearned(b *testing.B) {
	benchmarkLookup(b, 10, func(m *mirrored, prompts [][]block.Key) { learn(b, m, prompts) })
}

func benchmarkLookup(b *testing.B, holders int, prepare func(*mirrored, [][]block.Key)) {
	for _, kind := range testenv.ValkeyKinds {
		for _, cache := range []int64{0, 64 << 20} {
			m, prompts := filled(b, kind, 100)
			prepare(m, prompts)
			ctx := context.Background()
			c := m.reader.config
			c.URL, c.ClientCache = "valkey://"+m.bench.server.Address, cache
			reader := NewReader(c, m.reader.parts)
			client, err := reader.connect()
			if err != nil {
				b.Fatal(err)
			}
			reader.client.Store(&client)
			reader.table.Store(m.reader.table.Load())
			for _, n := range []int{64, 512} {
				b.Run(fmt.Sprintf("%s/%d blocks/cache %d", kind, n, cache), func(b *testing.B) {
					q := warmpath.Lookup{BlockSize: 16, Algorithm: block.XXH3}
					var times []time.Duration
					trips := reader.Stats().RoundTrips
					for b.Loop() {
						q.Keys = prompts[rand.IntN(len(prompts))][:n]
						start := time.Now()
						if err := reader.Match(ctx, &q); err != nil || len(q.Matches) != holders || q.Matches[holders-1].Blocks != uint32(n) {
							b.Fatal(err, q.Matches)
						}
						times = append(times, time.Since(start))
					}
					slices.Sort(times)
					b.ReportMetric(float64(times[len(times)/2].Microseconds()), "p50-µs")
					b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "p99-µs")
					b.ReportMetric(float64(reader.Stats().RoundTrips-trips)/float64(len(times)), "trips")
				})
			}
			client.Close()
		}
	}
}

// BenchmarkWrite measures how many blocks a writer adds and drops in a second, as a full cache does: each prompt of 512
// blocks takes the place of an older one at the same holder.
func BenchmarkWrite(b *testing.B) {
	for _, kind := range testenv.ValkeyKinds {
		b.Run(kind, func(b *testing.B) {
			h, err := block.NewHasher(block.XXH3, 16)
			if err != nil {
				b.Fatal(err)
			}
			m := newBench(b, testenv.StartValkey(b, kind), 8).mirror(h, kvindex.Config{})
			r := rand.New(rand.NewPCG(1, 2))
			var cached [][]uint64
			hash := uint64(0)
			for b.Loop() {
				s := kvindex.Stored{Tokens: make([]block.Token, 512*16), BlockSize: 16, Origin: kvindex.OriginNew}
				for i := range s.Tokens {
					s.Tokens[i] = r.Uint32()
				}
				for range 512 {
					hash++
					s.Hashes = append(s.Hashes, hash)
				}
				m.index.Store(0, &s)
				if cached = append(cached, s.Hashes); len(cached) > 16 {
					gone := cached[0]
					slices.Reverse(gone)
					m.index.Remove(0, block.TierGPU, 0, gone)
					cached = cached[1:]
				}
				m.settle()
			}
			b.ReportMetric(float64(m.writer.Stats().Written)/b.Elapsed().Seconds(), "blocks/s")
		})
	}
}

// BenchmarkMemory reports the memory of a block at the server and in the index, for prompts of 512 blocks that one or
// eight holders have.
func BenchmarkMemory(b *testing.B) {
	for _, kind := range testenv.ValkeyKinds {
		for _, holders := range []int{1, 8} {
			b.Run(fmt.Sprintf("%s/%d holders", kind, holders), func(b *testing.B) {
				for b.Loop() {
					h, err := block.NewHasher(block.XXH3, 16)
					if err != nil {
						b.Fatal(err)
					}
					bench := newBench(b, testenv.StartValkey(b, kind), 8)
					bench.prefix = DefaultConfig().Prefix // it is in each name
					m := bench.mirror(h, kvindex.Config{})
					m.settle()
					before := used(b, bench)
					r := rand.New(rand.NewPCG(1, 2))
					hash := uint64(0)
					for range 500 {
						s := kvindex.Stored{Tokens: make([]block.Token, 512*16), BlockSize: 16, Origin: kvindex.OriginNew}
						for i := range s.Tokens {
							s.Tokens[i] = r.Uint32()
						}
						for range 512 {
							hash++
							s.Hashes = append(s.Hashes, hash)
						}
						for holder := range holders {
							m.index.Store(fleet.Holder(holder), &s)
						}
						m.settle()
					}
					blocks := float64(500 * 512)
					b.ReportMetric((used(b, bench)-before)/blocks, "server-B/block")
					b.ReportMetric(float64(m.index.Stats().Bytes)/blocks, "index-B/block")
				}
			})
		}
	}
}

// used returns the memory that a server uses, in bytes.
func used(b *testing.B, bench *bench) (bytes float64) {
	text, err := bench.client.Do(context.Background(), bench.client.B().Info().Section("memory").Build()).ToString()
	if err != nil {
		b.Fatal(err)
	}
	_, text, _ = strings.Cut(text, "used_memory:")
	if _, err := fmt.Sscan(text, &bytes); err != nil {
		b.Fatal(err)
	}
	return bytes
}
