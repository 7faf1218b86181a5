package kvfeed

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/test/testenv"
)

// chunk returns an event that announces a part of a prompt as LMCache does: with one hash for all tokens. LMCache
// computes this hash; it is not the engine's hash.
func chunk(c, start, n int, medium string) kvevent.Event {
	name := func(end int) kvevent.Hash { return kvevent.Hash(c)<<40 | kvevent.Hash(end) }
	e := kvevent.Event{
		Kind: kvevent.Stored, Group: -1, Medium: medium, Tier: block.TierCPU, BlockSize: n, NoExtraKeys: true,
		Hashes: []kvevent.Hash{name(start + n)}, Tokens: prompt(c, start+n)[start:],
	}
	if start > 0 {
		e.HasParent, e.Parent = true, name(start)
	}
	return e
}

func TestBlocksOfATierWithoutRemovalsCountForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{UnremovedTTL: time.Minute})
		s := r.stream(facts(fleet.EngineVLLM, 16))
		seq := uint64(0)
		send := func(events ...kvevent.Event) {
			s.Message(seq, wire(t, "vllm-0.32.0+bytes", batch(events...)))
			seq++
		}
		check := func(want1, want2 int, trust fleet.Trust, why string) {
			t.Helper()
			s.look(time.Now())
			if a, b := r.match(prompt(1, 700)), r.match(prompt(2, 200)); a != want1 || b != want2 {
				t.Errorf("matches %d and %d, want %d and %d", a, b, want1, want2)
			}
			r.trust(s.holder, trust, why)
		}
		send(stored(2, 0, 64, 16))
		check(0, 64, fleet.TrustExact, "")
		send(chunk(1, 0, 256, "cpu"), chunk(1, 256, 256, "cpu"), chunk(1, 512, 36, "cpu"))
		check(544, 64, fleet.TrustApproximate, "announces no removals: its blocks count for 1m0s")
		testenv.Pass(30 * time.Second)
		send(chunk(1, 0, 256, "cpu")) // a second announcement of the chunk means that LMCache dropped it in between
		testenv.Pass(29 * time.Second)
		check(544, 64, fleet.TrustApproximate, "events.unremoved_ttl")
		testenv.Pass(2 * time.Second)
		check(256, 64, fleet.TrustApproximate, "")
		testenv.Pass(30 * time.Second)
		check(0, 64, fleet.TrustExact, "")

		send(chunk(1, 0, 256, "cpu"))
		send(kvevent.Event{Kind: kvevent.Cleared, Group: -1}) // a reset of the accelerator's cache leaves LMCache's blocks as they are
		check(256, 0, fleet.TrustApproximate, "")
		s.Restarted("test")
		s.Complete()
		check(0, 0, fleet.TrustExact, "")
		if s.unremoved.queue != nil || s.unremoved.latest != nil {
			t.Error("after a restart of the engine blocks are left")
		}
	})
}

// A connector's event may name a cache group. One hash may then be in several groups, and the blocks of each group
// expire separately.
func TestBlocksOfATierWithoutRemovalsExpireInEachCacheGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{UnremovedTTL: time.Minute})
		s := r.stream(facts(fleet.EngineVLLM, 16))
		for group := range 3 {
			e := chunk(1, 0, 256, "cpu")
			e.Group = group
			s.Message(uint64(group), wire(t, "vllm-0.32.0+bytes", batch(e)))
		}
		if got := r.match(prompt(1, 700)); got != 256 {
			t.Fatalf("%d tokens match, want 256", got)
		}
		testenv.Pass(2 * time.Minute)
		s.look(time.Now())
		if st, _ := r.router.HolderStats(s.holder); st.Blocks[block.TierCPU] != 0 {
			t.Errorf("after their time the index still has %d blocks", st.Blocks[block.TierCPU])
		}
		if got := r.match(prompt(1, 700)); got != 0 {
			t.Errorf("after their time %d tokens match", got)
		}
	})
}

// LMCache's events do not contain adapters and salts. If requests carry one of them, LMCache's blocks may belong to
// such requests.
func TestAConnectorsBlocksAreNotBelievedWhereRequestsCarryKeys(t *testing.T) {
	r := newRig(t, Config{})
	s := r.stream(facts(fleet.EngineVLLM, 16))
	r.feed.Scoped(s.url, s.rank, "tenant", "")
	gone := chunk(3, 0, 256, "cpu")
	gone.Kind = kvevent.Removed
	for i, e := range []kvevent.Event{chunk(1, 0, 256, "cpu"), gone, chunk(1, 0, 256, "cpu")} {
		s.Message(uint64(i), wire(t, "vllm-0.32.0", batch(e)))
		if got := r.match(prompt(1, 700)); got != 0 {
			t.Errorf("after event %d, %d tokens match", i, got)
		}
	}
	r.trust(s.holder, fleet.TrustDegraded, "not believed")
}

// LMCache with a server announces blocks with the same medium as vLLM's own tier, and without a cache group. Newer
// versions also announce removals. The first removal shows the router that the tier does so.
func TestATierIsSeenToAnnounceRemovals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{UnremovedTTL: time.Minute})
		s := r.stream(facts(fleet.EngineVLLM, 16))
		gpu := stored(2, 0, 64, 16)
		gpu.Group, gpu.Spec = 0, "full_attention"
		s.Message(0, wire(t, "vllm-0.32.0", batch(gpu, chunk(1, 0, 256, "CPU"), chunk(1, 256, 256, "CPU"))))
		if got := r.match(prompt(1, 700)); got != 512 {
			t.Errorf("%d tokens match, want 512", got)
		}
		r.trust(s.holder, fleet.TrustApproximate, "announces no removals")
		gone := chunk(1, 256, 256, "CPU")
		gone.Kind = kvevent.Removed
		s.Message(1, wire(t, "vllm-0.32.0", batch(gone)))
		testenv.Pass(10 * time.Minute)
		s.look(time.Now())
		if got := r.match(prompt(1, 700)); got != 256 {
			t.Errorf("%d tokens match, want 256: the tier announces its removals", got)
		}
		r.trust(s.holder, fleet.TrustExact, "")
	})
}

// After the first removal, blocks from before the removal and blocks from after it count in the same way.
func TestATierThatAnnouncesRemovalsKeepsAllItsBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{UnremovedTTL: time.Minute})
		s := r.stream(facts(fleet.EngineVLLM, 16))
		gone := chunk(3, 0, 256, "cpu")
		gone.Kind = kvevent.Removed
		for i, e := range []kvevent.Event{chunk(1, 0, 256, "cpu"), gone, chunk(2, 0, 256, "cpu")} {
			s.Message(uint64(i), wire(t, "vllm-0.32.0", batch(e)))
		}
		testenv.Pass(10 * time.Minute)
		s.look(time.Now())
		if a, b := r.match(prompt(1, 700)), r.match(prompt(2, 700)); a != 256 || b != 256 {
			t.Errorf("%d tokens match from before the removal and %d from after it, want 256 and 256", a, b)
		}
		r.trust(s.holder, fleet.TrustExact, "")
	})
}

// An engine may have two connectors. The removals of one connector say nothing about the other connector.
func TestARemovalOfAnotherMediumLeavesTheTimeLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{UnremovedTTL: time.Minute})
		s := r.stream(facts(fleet.EngineVLLM, 16))
		gone := chunk(3, 0, 256, "CPU")
		gone.Kind = kvevent.Removed
		s.Message(0, wire(t, "vllm-0.32.0", batch(chunk(1, 0, 256, "cpu"), gone)))
		r.trust(s.holder, fleet.TrustApproximate, "announces no removals")
		testenv.Pass(2 * time.Minute)
		s.look(time.Now())
		if got := r.match(prompt(1, 700)); got != 0 {
			t.Errorf("after their time %d tokens match", got)
		}
	})
}

func TestBlocksWithoutRemovalsAreBoundedInNumber(t *testing.T) {
	r := newRig(t, Config{})
	s := r.stream(facts(fleet.EngineVLLM, 16))
	for c := range 20 {
		e := stored(c, 0, 16*mostUnremoved/8, 16)
		e.Medium, e.Tier, e.NoExtraKeys = "cpu", block.TierCPU, true
		s.Message(uint64(c), wire(t, "vllm-0.32.0", batch(e)))
	}
	if n := len(s.unremoved.queue); n != mostUnremoved || len(s.unremoved.latest) != n {
		t.Errorf("%d and %d blocks are kept, want %d", n, len(s.unremoved.latest), mostUnremoved)
	}
	if first, last := r.match(prompt(0, 100)), r.match(prompt(19, 100)); first != 0 || last != 96 {
		t.Errorf("the first prompt matches %d tokens and the last %d, want 0 and 96", first, last)
	}
}
