package kvindex_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// gridBlocks is the number of distinct blocks in the index of a benchmark. It is WARMPATH_BENCH_BLOCKS if this variable
// is set; else a million, or 100,000 with -short.
func gridBlocks(b *testing.B) int {
	if n, err := strconv.Atoi(os.Getenv("WARMPATH_BENCH_BLOCKS")); err == nil {
		return n
	}
	if testing.Short() {
		return 100_000
	}
	return 1_000_000
}

const gridPrompt = 6250 // the length of a prompt in blocks: 100,000 tokens

// grid is an index of long prompts. The first prompts may be at many holders.
type grid struct {
	x       *kvindex.Index
	prompts []chain // the prompts that the benchmarks look up: the first ones of the index
}

// newGrid returns an index in which each of the first prompts is at several holders; the parameter sharing is the
// number of these holders. Each of the remaining prompts is at one holder.
func newGrid(b *testing.B, holders, sharing int) *grid {
	b.Helper()
	h, err := block.NewHasher(block.XXH3, 16)
	if err != nil {
		b.Fatal(err)
	}
	g := &grid{x: kvindex.New(h, kvindex.Config{Bytes: 64 << 30})}
	r := rand.New(rand.NewPCG(1, 2))
	asked := max(8, min(64, 8000/sharing))
	for n := 0; n < gridBlocks(b); n += gridPrompt {
		prompt := randomChain(r, gridPrompt)
		first, copies := r.IntN(holders), 1
		if len(g.prompts) < asked {
			g.prompts = append(g.prompts, prompt)
			copies = sharing
		}
		for k := range copies {
			prompt.learn(g.x, fleet.Holder((first+k)%holders))
		}
	}
	return g
}

// BenchmarkMatchGrid measures lookups of prepared keys in random order. There are three cases: the index has the whole
// prompt; it has the prompt up to a random block; it has no block. BenchmarkLimit measures the part of the time that no
// lookup in a table of this size can avoid.
func BenchmarkMatchGrid(b *testing.B) {
	for _, c := range []struct{ sharing, holders int }{{1, 8}, {4, 8}, {8, 64}, {64, 64}, {1000, 4096}} {
		b.Run(fmt.Sprintf("%d of %d", c.sharing, c.holders), func(b *testing.B) {
			g := newGrid(b, c.holders, c.sharing)
			for _, n := range []int{64, 512, gridPrompt} {
				b.Run(fmt.Sprintf("%d blocks", n), func(b *testing.B) { g.measure(b, n, c.sharing, false) })
				b.Run(fmt.Sprintf("%d blocks, in part", n), func(b *testing.B) { g.measure(b, n, c.sharing, true) })
			}
		})
	}
	b.Run("none", func(b *testing.B) {
		g := newGrid(b, 8, 1)
		for _, prompt := range g.prompts {
			for i := range prompt.keys {
				prompt.keys[i] ^= 1 << 40
			}
		}
		for _, n := range []int{64, 512, gridPrompt} {
			b.Run(fmt.Sprintf("%d blocks", n), func(b *testing.B) { g.measure(b, n, 0, false) })
		}
	})
}

// measure looks up the first n blocks of random prompts. want is the number of holders in each answer. If part is true,
// the index has each prompt only up to a random block.
func (g *grid) measure(b *testing.B, n, want int, part bool) {
	r := rand.New(rand.NewPCG(3, 4))
	var requests [][]block.Key
	for range 256 {
		keys := slices.Clone(g.prompts[r.IntN(len(g.prompts))].keys[:n])
		if part {
			for i := 1 + r.IntN(n-1); i < n; i++ {
				keys[i] ^= 1 << 40
			}
		}
		requests = append(requests, keys)
	}
	dst := make([]kvindex.Match, 0, 4096)
	times := make([]time.Duration, 0, 1<<16)
	b.ReportAllocs()
	for b.Loop() {
		keys := requests[r.IntN(len(requests))]
		start := time.Now()
		dst = g.x.Match(keys, dst[:0])
		if took := time.Since(start); len(times) < cap(times) {
			times = append(times, took)
		}
		if len(dst) != want {
			b.Fatalf("%d holders, want %d", len(dst), want)
		}
	}
	quantiles(b, times)
}

func quantiles(b *testing.B, times []time.Duration) {
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2]), "p50-ns")
	b.ReportMetric(float64(times[len(times)*99/100]), "p99-ns")
}

// BenchmarkLimit reads 0 to 3 words of a table that has two words for each of the benchmark's blocks. Each word gives
// the place of the next word. A lookup reads three words in this way: a slot of the table, the strand (run of blocks)
// of the slot, and the strand's set of holders. The result includes the time of reading the clock, as in
// BenchmarkMatchGrid.
func BenchmarkLimit(b *testing.B) {
	words := make([]uint64, gridBlocks(b)*2)
	r := rand.New(rand.NewPCG(5, 6))
	for i := range words {
		words[i] = r.Uint64N(uint64(len(words)))
	}
	for _, misses := range []int{0, 1, 2, 3} {
		b.Run(fmt.Sprintf("%d misses", misses), func(b *testing.B) {
			times := make([]time.Duration, 0, 1<<16)
			sum := uint64(0)
			for b.Loop() {
				at := r.Uint64N(uint64(len(words)))
				start := time.Now()
				for range misses {
					at = words[at]
				}
				sum += at
				if took := time.Since(start); len(times) < cap(times) {
					times = append(times, took)
				}
			}
			quantiles(b, times)
			b.ReportMetric(float64(sum&1), "parity") // the sum is used, so that the compiler keeps the reads
		})
	}
}

// BenchmarkForgetShared measures Forget of a holder that has an eighth of the index's usual number of blocks. The index
// also has prompts that eight other holders share.
func BenchmarkForgetShared(b *testing.B) {
	g := newGrid(b, 8, 8)
	r := rand.New(rand.NewPCG(1, 2))
	var mine []chain
	for range gridBlocks(b) / 8 / 512 {
		mine = append(mine, randomChain(r, 512))
	}
	for b.Loop() {
		b.StopTimer()
		for _, prompt := range mine {
			prompt.learn(g.x, 9)
		}
		b.StartTimer()
		g.x.Forget(9)
	}
}

// BenchmarkMatchBeside measures lookups while another goroutine changes the index without pause: it forgets and stores
// a holder, or stores blocks in a full index. Readers do not wait for the writer. So the difference from the case
// "nothing" is the cost of shared processors and processor caches.
func BenchmarkMatchBeside(b *testing.B) {
	r := rand.New(rand.NewPCG(7, 8))
	blocks := gridBlocks(b)
	for _, c := range []struct {
		name  string
		bytes int64
		turn  func(x *kvindex.Index, mine []chain)
	}{
		{"nothing", 64 << 30, nil},
		{"forgetting", 64 << 30, func(x *kvindex.Index, mine []chain) {
			for _, prompt := range mine {
				prompt.learn(x, 9)
			}
			x.Forget(9)
		}},
		{"evicting", int64(blocks) * 24, func(x *kvindex.Index, mine []chain) {
			for _, prompt := range mine {
				prompt.tokens[0]++
				newChain(prompt.tokens).learn(x, 9)
			}
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			h, _ := block.NewHasher(block.XXH3, 16)
			x := kvindex.New(h, kvindex.Config{Bytes: c.bytes})
			var asked, mine []chain
			for n := 0; n < blocks*7/8; n += 512 {
				asked = append(asked, randomChain(r, 512))
				asked[len(asked)-1].learn(x, fleet.Holder(n/512%8))
			}
			for n := 0; n < blocks/8; n += 512 {
				mine = append(mine, randomChain(r, 512))
			}
			var done atomic.Bool
			var writer sync.WaitGroup
			writer.Go(func() {
				for c.turn != nil && !done.Load() {
					c.turn(x, mine)
				}
			})
			dst := make([]kvindex.Match, 0, 16)
			times := make([]time.Duration, 0, 1<<18)
			for b.Loop() {
				start := time.Now()
				dst = x.Match(asked[r.IntN(len(asked))].keys, dst[:0])
				if took := time.Since(start); len(times) < cap(times) {
					times = append(times, took)
				}
			}
			done.Store(true)
			writer.Wait()
			quantiles(b, times)
		})
	}
}
