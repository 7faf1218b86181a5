package kvindex_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// fleetOf returns an index in which each prompt is at one of the holders. The parameter each is the number of blocks of
// a prompt, blocks is the number of blocks of all prompts together, and shared is the number of leading blocks that are
// the same in all prompts.
func fleetOf(tb testing.TB, holders, blocks, shared, each int) (*kvindex.Index, *block.Hasher, [][]block.Token) {
	tb.Helper()
	h, err := block.NewHasher(block.XXH3, 16)
	if err != nil {
		tb.Fatal(err)
	}
	x := kvindex.New(h, kvindex.Config{Bytes: 8 << 30})
	r := rand.New(rand.NewPCG(1, 2))
	head := random(r, shared*16)
	var prompts [][]block.Token
	for n := 0; n < blocks; n += each {
		prompt := append(append([]block.Token(nil), head...), random(r, (each-shared)*16)...)
		prompts = append(prompts, prompt)
		announce(x, fleet.Holder(len(prompts)%holders), prompt, 32)
	}
	return x, h, prompts
}

func random(r *rand.Rand, n int) []block.Token {
	out := make([]block.Token, n)
	for i := range out {
		out[i] = block.Token(r.Uint32() % 128_000)
	}
	return out
}

// announce stores a prompt by several events. Each event has as many blocks as step says; the last one may have fewer.
func announce(x *kvindex.Index, h fleet.Holder, prompt []block.Token, step int) {
	hashes := make([]uint64, len(prompt)/16)
	d := uint64(h) + 1
	for i := range hashes {
		for _, t := range prompt[i*16 : i*16+16] {
			d = (d ^ uint64(t)) * 0x100000001b3
		}
		hashes[i] = d
	}
	for i := 0; i < len(hashes); i += step {
		to := min(i+step, len(hashes))
		s := kvindex.Stored{Hashes: hashes[i:to], Tokens: prompt[i*16 : to*16], BlockSize: 16}
		if i > 0 {
			s.Parent, s.HasParent = hashes[i-1], true
		}
		x.Store(h, &s)
	}
}

func BenchmarkMatch(b *testing.B) {
	for _, c := range []struct{ blocks, holders, sharing int }{{64, 8, 1}, {512, 8, 1}, {64, 8, 8}, {512, 8, 8}, {512, 64, 64}} {
		b.Run(fmt.Sprintf("%d blocks, %d of %d holders", c.blocks, c.sharing, c.holders), func(b *testing.B) {
			x, h, prompts := fleetOf(b, c.holders, 1_000_000, 16, 512)
			r := rand.New(rand.NewPCG(3, 4))
			var requests [][]block.Key
			for range 256 {
				prompt := prompts[r.IntN(len(prompts))][:c.blocks*16]
				requests = append(requests, h.Append(nil, h.Root(block.Scope{}), 0, prompt, nil))
				for i := 1; i < c.sharing; i++ {
					announce(x, fleet.Holder(i), prompt, 32)
				}
			}
			var dst []kvindex.Match
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				dst = x.Match(requests[i&255], dst[:0])
				i++
			}
		})
	}
}

func BenchmarkStore(b *testing.B) {
	for _, step := range []int{1, 32} {
		b.Run(fmt.Sprintf("%d blocks an event", step), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 2))
			h, _ := block.NewHasher(block.XXH3, 16)
			x := kvindex.New(h, kvindex.Config{Bytes: 8 << 30})
			tokens := random(r, 1<<20)
			hash := uint64(0)
			hashes := make([]uint64, step)
			b.ReportAllocs()
			blocks, round := 0, uint64(0)
			for b.Loop() {
				at := blocks * 16 % (1<<20 - step*16)
				for i := range hashes {
					hash++
					hashes[i] = hash * 0x9e3779b97f4a7c15
				}
				s := kvindex.Stored{Hashes: hashes, Tokens: tokens[at : at+step*16], BlockSize: 16}
				if round%16 > 0 { // a conversation has 16 events
					s.Parent, s.HasParent = (hash-uint64(step))*0x9e3779b97f4a7c15, true
				}
				x.Store(fleet.Holder(round/16%8), &s)
				round++
				blocks += step
				if blocks%(1<<20) < step {
					b.StopTimer()
					for i := range fleet.Holder(8) {
						x.Forget(i)
					}
					round = 0
					b.StartTimer()
				}
			}
			b.ReportMetric(float64(blocks)/b.Elapsed().Seconds(), "blocks/s")
		})
	}
}

// BenchmarkChurn measures events at a full cache: each event that stores 32 blocks comes with an event that removes the
// 32 blocks of the oldest event.
func BenchmarkChurn(b *testing.B) { benchmarkChurn(b, nil) }

// BenchmarkChurnTold is BenchmarkChurn with somebody who is told of the changes.
func BenchmarkChurnTold(b *testing.B) {
	blocks := 0
	benchmarkChurn(b, func(c *kvindex.Change) { blocks += len(c.Keys) })
	if blocks == 0 {
		b.Error("no change was told")
	}
}

func benchmarkChurn(b *testing.B, changed func(*kvindex.Change)) {
	r := rand.New(rand.NewPCG(1, 2))
	h, _ := block.NewHasher(block.XXH3, 16)
	x := kvindex.New(h, kvindex.Config{Bytes: 8 << 30, Changed: changed})
	tokens := random(r, 1<<20)
	const step, cached = 32, 8192 // step: blocks of an event; cached: events whose blocks are in the cache
	event := func(n int) []uint64 {
		out := make([]uint64, step)
		for i := range out {
			out[i] = uint64(n*step+i+1) * 0x9e3779b97f4a7c15
		}
		return out
	}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		at := n * 16 * 7 % (1<<20 - step*16)
		if n >= cached {
			x.Remove(0, block.TierGPU, 0, event(n-cached))
		}
		x.Store(0, &kvindex.Stored{Hashes: event(n), Tokens: tokens[at : at+step*16], BlockSize: 16, Scope: block.Scope{Salt: fmt.Sprint(n)}})
		n++
	}
	b.ReportMetric(float64(n*step)/b.Elapsed().Seconds(), "blocks/s")
}

// BenchmarkBytes reports the memory of the index for each block, and for each pair of a holder and a block.
func BenchmarkBytes(b *testing.B) {
	for _, c := range []struct {
		name    string
		holders int
		sharing bool
	}{{"one holder each", 8, false}, {"all eight holders", 8, true}} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				h, _ := block.NewHasher(block.XXH3, 16)
				x := kvindex.New(h, kvindex.Config{Bytes: 8 << 30})
				r := rand.New(rand.NewPCG(1, 2))
				for i := range 512 {
					prompt := random(r, 512*16)
					for j := range c.holders {
						if c.sharing || i%c.holders == j {
							announce(x, fleet.Holder(j), prompt, 32)
						}
					}
				}
				s := x.Stats()
				b.ReportMetric(float64(s.Bytes)/float64(s.Memberships), "B/membership")
				b.ReportMetric(float64(s.Bytes)/float64(s.Blocks), "B/block")
			}
		})
	}
}

// BenchmarkForget measures Forget of one of eight holders, after 0, 1 or 2 other holders were forgotten.
func BenchmarkForget(b *testing.B) {
	for _, before := range []int{0, 1, 2} {
		b.Run(fmt.Sprintf("after %d others", before), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				x, _, _ := fleetOf(b, 8, 1_000_000, 0, 512)
				for i := range before {
					x.Forget(fleet.Holder(i))
				}
				b.StartTimer()
				x.Forget(fleet.Holder(before))
			}
		})
	}
}

// BenchmarkEvict measures Store in a full index.
func BenchmarkEvict(b *testing.B) {
	h, _ := block.NewHasher(block.XXH3, 16)
	x := kvindex.New(h, kvindex.Config{Bytes: 64 << 20})
	r := rand.New(rand.NewPCG(1, 2))
	prompt := random(r, 512*16)
	n := 0
	for x.Stats().Evictions == 0 {
		prompt[0]++
		announce(x, 0, prompt, 32)
	}
	for b.Loop() {
		prompt[0]++
		announce(x, 0, prompt, 32)
		n += 512
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "blocks/s")
	b.ReportMetric(float64(x.Stats().Blocks), "blocks")
}

// BenchmarkEvictStall reports how long single events of 32 blocks take in a full index.
func BenchmarkEvictStall(b *testing.B) {
	h, _ := block.NewHasher(block.XXH3, 16)
	x := kvindex.New(h, kvindex.Config{Bytes: 64 << 20})
	r := rand.New(rand.NewPCG(1, 2))
	prompt := random(r, 512*16)
	for x.Stats().Evictions == 0 {
		prompt[0]++
		announce(x, 0, prompt, 32)
	}
	var times []time.Duration
	n := 0
	for b.Loop() {
		prompt[0]++
		hashes := make([]uint64, 512)
		for i := range hashes {
			hashes[i] = r.Uint64()
		}
		for i := 0; i < 512; i += 32 {
			s := kvindex.Stored{Hashes: hashes[i : i+32], Tokens: prompt[i*16 : i*16+512], BlockSize: 16}
			if i > 0 {
				s.Parent, s.HasParent = hashes[i-1], true
			}
			start := time.Now()
			x.Store(fleet.Holder(n%8), &s)
			times = append(times, time.Since(start))
		}
		n++
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2]), "p50-ns")
	b.ReportMetric(float64(times[len(times)*99/100]), "p99-ns")
	b.ReportMetric(float64(times[len(times)*999/1000]), "p99.9-ns")
	b.ReportMetric(float64(times[len(times)-1]), "max-ns")
	b.ReportMetric(float64(x.Stats().Blocks), "blocks")
}
