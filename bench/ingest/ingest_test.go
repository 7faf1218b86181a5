// Package ingest measures the cost of an engine's events on one core: it decodes the bytes of messages, hashes the
// tokens and applies the events to the index. The engines' caches are full, so events also remove blocks.
package ingest

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/warmpath/warmpath/bench/internal/machine"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/kvindex"
)

const (
	size  = 16 // tokens in a block
	vocab = 150_000
)

// shape has the sizes of an engine's messages. Once the cache is full, each message removes as many blocks as it
// stores.
type shape struct {
	name           string
	events, blocks int
	chain          int // number of blocks of a conversation; then a new conversation begins
	// holders is the number of engines, which send in turn. cache is the number of blocks in the cache of each engine.
	holders, cache int
}

// Prefill announces the 32 blocks of one engine step in one event. Decoding announces each block of each running
// request when the block is full.
var shapes = []shape{
	{"prefill 32 blocks an event", 1, 32, 512, 8, 32_768}, // 32,768 blocks are half a million tokens
	{"decode 1 block an event", 16, 1, 64, 8, 32_768},
}

// messages returns the messages of one holder in two parts. The first part, fill, makes the cache full. Each message of
// the second part, steady, stores blocks and removes the same number of the oldest blocks, the end of a conversation
// first. The steady messages can be played several times in a circle, because later messages remove the blocks of each
// message.
func messages(w kvevent.Wire, s shape, h int) (fill, steady [][]byte) {
	r := rand.New(rand.NewPCG(uint64(h), 9))
	var events []kvevent.Event
	total := 2 * s.cache / s.blocks
	running := make([][]uint64, s.events) // by running request: the announced hashes
	for i := range total {
		lane := i % s.events
		if len(running[lane]) >= s.chain {
			running[lane] = running[lane][:0]
		}
		e := kvevent.Event{Kind: kvevent.Stored, Group: 0, BlockSize: size, Medium: "GPU", Spec: "full_attention"}
		if n := len(running[lane]); n > 0 {
			e.HasParent, e.Parent = true, running[lane][n-1]
		}
		for range s.blocks {
			hash := r.Uint64()
			e.Hashes = append(e.Hashes, hash)
			running[lane] = append(running[lane], hash)
			for range size {
				e.Tokens = append(e.Tokens, r.Uint32N(vocab))
			}
		}
		events = append(events, e)
	}
	removal := func(e *kvevent.Event) kvevent.Event {
		gone := kvevent.Event{Kind: kvevent.Removed, Group: 0, Medium: "GPU"}
		for i := len(e.Hashes) - 1; i >= 0; i-- {
			gone.Hashes = append(gone.Hashes, e.Hashes[i])
		}
		return gone
	}
	// Of a conversation's blocks, the last one is removed first.
	order := oldestFirst(s, total)
	half := total / 2
	for i := 0; i < total; i += s.events {
		b := kvevent.Batch{Time: 1.7e9, HasRank: true}
		b.Events = append(b.Events, events[i:i+s.events]...)
		if i < half {
			fill = append(fill, w.Append(nil, &b))
		}
		for k := range s.events {
			b.Events = append(b.Events, removal(&events[order[(i+k+half)%total]]))
		}
		steady = append(steady, w.Append(nil, &b))
	}
	return fill, append(steady[len(steady)/2:], steady[:len(steady)/2]...)
}

// oldestFirst orders events by conversation, the oldest conversation first. Within a conversation it starts at the end.
func oldestFirst(s shape, total int) []int {
	length := s.chain / s.blocks // number of events of a conversation
	var order []int
	for first := 0; first < total; first += length * s.events {
		for lane := range s.events {
			for k := length - 1; k >= 0; k-- {
				order = append(order, first+k*s.events+lane)
			}
		}
	}
	return order
}

// reader applies messages of one holder, as a router does.
type reader struct {
	decoder kvevent.Decoder
	batch   kvevent.Batch
	stored  kvindex.Stored
	blocks  int // number of stored blocks
	gone    []kvevent.Hash
}

func (r *reader) decode(tb testing.TB, payload []byte) {
	if err := r.decoder.Decode(payload, &r.batch); err != nil || r.batch.Skipped > 0 {
		tb.Fatal(err, r.batch.Problem)
	}
	for i := range r.batch.Events {
		if e := &r.batch.Events[i]; e.Kind == kvevent.Stored {
			r.blocks += len(e.Hashes)
		}
	}
}

func (r *reader) apply(x *kvindex.Index, h fleet.Holder) {
	for i := 0; i < len(r.batch.Events); i++ {
		e := &r.batch.Events[i]
		if e.Kind == kvevent.Removed {
			n := 0
			n, r.gone = r.batch.Removals(i, r.gone[:0])
			x.Remove(h, e.Tier, e.Group, r.gone)
			i += n - 1
			continue
		}
		s := &r.stored
		s.Tier, s.Group, s.Attention, s.Scope.Salt = e.Tier, e.Group, e.Attention, e.Salt
		s.Parent, s.HasParent, s.Hashes, s.BlockSize = e.Parent, e.HasParent, e.Hashes, e.BlockSize
		s.Tokens, s.Features = e.Tokens, e.Features
		x.Store(h, s)
	}
}

func newHasher(tb testing.TB) *block.Hasher {
	h, err := block.NewHasher(block.XXH3, size)
	if err != nil {
		tb.Fatal(err)
	}
	return h
}

// full returns an index with the blocks of engines whose caches are full, and the steady messages of each engine.
func full(tb testing.TB, s shape) (*kvindex.Index, []reader, [][][]byte) {
	x := kvindex.New(newHasher(tb), kvindex.Config{Bytes: 4 << 30})
	readers, steady := make([]reader, s.holders), make([][][]byte, s.holders)
	for h := range s.holders {
		var fill [][]byte
		fill, steady[h] = messages(kvevent.Wire{}, s, h)
		for _, payload := range fill {
			readers[h].decode(tb, payload)
			readers[h].apply(x, fleet.Holder(h))
		}
	}
	return x, readers, steady
}

func TestACacheStaysFull(t *testing.T) {
	for _, s := range shapes {
		s.holders, s.cache = 2, 4096
		x, readers, steady := full(t, s)
		for round := range 2 {
			for i := range steady[0] {
				for h := range s.holders {
					readers[h].decode(t, steady[h][i])
					readers[h].apply(x, fleet.Holder(h))
				}
				if i%50 > 0 {
					continue
				}
				if got := x.Stats(); got.Memberships != int64(s.holders*s.cache) || got.Waiting != 0 || got.UnknownRemoved != 0 {
					t.Fatalf("%s, round %d, message %d: %d blocks of %d, %d wait, %d removals of nothing",
						s.name, round, i, got.Memberships, s.holders*s.cache, got.Waiting, got.UnknownRemoved)
				}
			}
		}
	}
}

// BenchmarkIngest decodes messages, hashes their tokens and applies their events. The caches are full, so each message
// removes as many blocks as it stores. Mblocks/s counts stored blocks. The figure for a core divides by processor time
// instead of wall time, so that other work on the machine matters less.
func BenchmarkIngest(b *testing.B) {
	for _, s := range shapes {
		b.Run(s.name, func(b *testing.B) {
			x, readers, steady := full(b, s)
			play(b, s, func(i, h int) {
				readers[h].decode(b, steady[h][i%len(steady[h])])
				readers[h].apply(x, fleet.Holder(h))
			})
		})
		b.Run(s.name+", decoded only", func(b *testing.B) {
			_, readers, steady := full(b, s)
			play(b, s, func(i, h int) { readers[h].decode(b, steady[h][i%len(steady[h])]) })
		})
		b.Run(s.name+", decoded and hashed", func(b *testing.B) {
			_, readers, steady := full(b, s)
			hasher := newHasher(b)
			var keys []block.Key
			play(b, s, func(i, h int) {
				readers[h].decode(b, steady[h][i%len(steady[h])])
				for k := range readers[h].batch.Events {
					keys = hasher.Append(keys[:0], 1, 0, readers[h].batch.Events[k].Tokens, nil)
				}
			})
		})
	}
}

// play calls f with the number i of a message and a holder h: message 0 of each holder, then message 1 of each holder,
// and so on.
func play(b *testing.B, s shape, f func(i, h int)) {
	b.ReportAllocs()
	runtime.GC()
	cpu := machine.ProcessorTime()
	i := 0
	for b.Loop() {
		f(i/s.holders, i%s.holders)
		i++
	}
	blocks := float64(i * s.events * s.blocks)
	b.ReportMetric(blocks/b.Elapsed().Seconds()/1e6, "Mblocks/s")
	if used := machine.ProcessorTime() - cpu; used > 0 {
		b.ReportMetric(blocks/used.Seconds()/1e6, "Mblocks/core-s")
	}
}
