package kvindex_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/test/testenv"
)

// busy is an index in the middle of a change.
type busy struct {
	*kvindex.Index
	begin, end chan bool
}

// newBusy returns an index whose writers stop when they meet a new holder.
func newBusy(t *testing.T) *busy {
	h, err := block.NewHasher(block.XXH3, 16)
	if err != nil {
		t.Fatal(err)
	}
	x := &busy{begin: make(chan bool), end: make(chan bool)}
	x.Index = kvindex.New(h, kvindex.Config{Worker: func(h fleet.Holder) (fleet.WorkerID, bool) {
		if h >= 100 {
			x.begin <- true
			<-x.end
		}
		return fleet.WorkerID(h), true
	}})
	return x
}

// during calls f while h's first event is applied.
func (x *busy) during(h fleet.Holder, f func()) {
	done := make(chan bool)
	go func() { // ends with the event
		x.StoreKeys(h, block.TierGPU, 0, 0, false, []block.Key{block.Key(h)})
		done <- true
	}()
	<-x.begin
	f()
	x.end <- true
	<-done
}

func someKeys(r *rand.Rand, n int) []block.Key {
	keys := make([]block.Key, n)
	for i := range keys {
		keys[i] = block.Key(r.Uint64())
	}
	return keys
}

func TestADecisionDoesNotWaitForEvents(t *testing.T) {
	x, r := newBusy(t), rand.New(rand.NewPCG(1, 2))
	short, long := someKeys(r, 10), someKeys(r, 1000)
	believed := func(keys []block.Key) uint32 {
		m := x.Match(keys, 1, nil)
		if len(m) == 0 {
			return 0
		}
		return m[0].Speculative
	}
	x.during(100, func() {
		went := make(chan bool)
		go func() { // ends, or the test fails
			x.Speculate(1, short, 5)
			x.Speculate(1, long, 5)
			close(went)
		}()
		select {
		case <-went:
		case <-time.After(10 * time.Second):
			t.Fatal("it waits")
		}
		if n := believed(short); n != 0 {
			t.Errorf("%d blocks are believed while the index is locked", n)
		}
	})
	if s, l := believed(short), believed(long); s != 10 || l != 1000 {
		t.Errorf("%d of 10 and %d of 1000 blocks are believed after the event", s, l)
	}
}

// Two decisions at a time, and then nothing: what one of them noted for the other must not wait for a third.
func TestNothingWaitsInAnIndexThatIsLeftAlone(t *testing.T) {
	x, r := newBusy(t), rand.New(rand.NewPCG(1, 2))
	told, done := make(chan []block.Key), make(chan bool)
	go func() { // ends when told is closed
		for keys := range told {
			x.Speculate(2, keys, 5)
			done <- true
		}
	}()
	defer close(told)
	for i := range 50_000 {
		one, other := someKeys(r, 1), someKeys(r, 1)
		told <- other
		x.Speculate(1, one, 5)
		<-done
		if len(x.Match(one, 1, nil)) == 0 || len(x.Match(other, 1, nil)) == 0 {
			t.Fatalf("a prompt of round %d is not believed", i)
		}
	}
}

func TestWhatComesToBeBelievedDuringAChangeIsBounded(t *testing.T) {
	x, r := newBusy(t), rand.New(rand.NewPCG(1, 2))
	const prompts, blocks, most = 100, 1000, 1 << 16
	x.during(100, func() {
		for range prompts {
			x.Speculate(1, someKeys(r, blocks), 5)
		}
	})
	const whole = 65 // prompts that fit, then a part of one more; each takes the memory of 6 blocks besides its own
	const want = most - (whole+1)*6
	if s := x.Stats(); s.Speculative != want || s.SpeculativeDropped != prompts*blocks-want {
		t.Errorf("%d blocks are believed, %d dropped", s.Speculative, s.SpeculativeDropped)
	}
}

// What is taken back during a change may find no room, or only for a part.
func TestADoubtThatDoesNotFitIsNone(t *testing.T) {
	x, r := newBusy(t), rand.New(rand.NewPCG(1, 2))
	old, long, short := someKeys(r, 1000), someKeys(r, 1<<16-2000), someKeys(r, 100)
	x.Speculate(1, old, 5)
	x.during(100, func() {
		x.Speculate(2, short, 5)
		x.Doubt(2, short, 50, 5)
		x.Speculate(1, long, 5)
		x.Speculate(3, someKeys(r, 1600), 5)
		x.Doubt(1, old, 500, 5) // there is room for some 280 blocks
	})
	for _, c := range []struct {
		what string
		keys []block.Key
		want uint32
	}{{"whole", short, 50}, {"cut", old, 1000}} {
		if m := x.Match(c.keys, 1, nil); len(m) == 0 || m[0].Speculative != c.want {
			t.Errorf("%s: %+v, want %d blocks believed", c.what, m, c.want)
		}
	}
	x.Doubt(1, old[:10], 10, 5) // nothing
	x.Doubt(1, old[:10], 20, 5) // more is known than there is
	if m := x.Match(old, 1, nil); len(m) == 0 || m[0].Speculative != 1000 {
		t.Errorf("%+v after doubts of nothing", m)
	}
}

func TestADecisionDuringAChangeDoesNotAllocate(t *testing.T) {
	if testenv.Race() {
		t.Skip("skipped: the race detector allocates")
	}
	x, r := newBusy(t), rand.New(rand.NewPCG(1, 2))
	keys := someKeys(r, 100)
	for h := fleet.Holder(100); h < 103; h++ { // two changes make the buffers
		x.during(h, func() {
			if n := testing.AllocsPerRun(100, func() { x.Speculate(1, keys, 5) }); n > 0 && h == 102 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}

// In a full index what is expected takes the room that events left. It takes none from what they announced.
func TestWhatIsExpectedEvictsNothing(t *testing.T) {
	h, err := block.NewHasher(block.XXH3, 16)
	if err != nil {
		t.Fatal(err)
	}
	for _, bytes := range []int64{1 << 20, 16 << 20} {
		x, r := kvindex.New(h, kvindex.Config{Bytes: bytes}), rand.New(rand.NewPCG(1, 2))
		for x.Stats().Evictions == 0 {
			announce(x, 0, random(r, 512*16), 32)
		}
		before := x.Stats()
		for range 1000 {
			steps := x.Stats().Steps
			x.Speculate(1, someKeys(r, 512), 1<<40)
			if n := x.Stats().Steps - steps; n > 1<<16 {
				t.Fatalf("%d bytes: %d steps of one decision", bytes, n)
			}
		}
		after := x.Stats()
		if after.Evictions != before.Evictions || after.Memberships != before.Memberships || after.Bytes > after.Budget {
			t.Errorf("%d bytes: %d blocks evicted, %d of %d announced ones left, %d bytes used", bytes,
				after.Evictions-before.Evictions, after.Memberships, before.Memberships, after.Bytes)
		}
		if after.SpeculativeDropped == 0 {
			t.Errorf("%d bytes: nothing dropped", bytes)
		}
		prompt := random(r, 512*16)
		keys := h.Append(nil, h.Root(block.Scope{}), 0, prompt, nil)
		seen := 0
		for range 100 { // events make room again
			prompt[0]++
			keys = h.Append(keys[:0], h.Root(block.Scope{}), 0, prompt, nil)
			x.Speculate(1, keys, 1<<40)
			if m := x.Match(keys, 1, nil); len(m) > 0 && m[0].Speculative == 512 {
				seen++
			}
			announce(x, 1, prompt, 32)
		}
		if seen < 90 {
			t.Errorf("%d bytes: %d of 100 prompts are expected", bytes, seen)
		}
	}
}
