package sharedindex

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/test/testenv"
)

// The server has slots for a few times that a holder is forgotten. Then it begins a new series, and both writers write
// everything anew.
func TestSlotsNeverRunOut(t *testing.T) {
	onEach(t, func(t *testing.T, s *testenv.ValkeyServer) {
		few := func(w *world) { w.writer.names.lastSlot = 8 }
		w := start(t, func(c *Config) { c.URL = "valkey://" + s.Address }, few)
		idle := start(t, func(c *Config) { c.URL = "valkey://" + s.Address }, few)
		idle.index.Forget(0)
		idle.store(2, 7)
		for round := range uint64(12) {
			w.index.Forget(0)
			w.store(0, round)
			testenv.Until(t, fmt.Sprint("round ", round, " is written"), func() bool { return w.blocks(0, round) == 40 })
			if n := w.blocks(0, round-1); round > 0 && n > 0 {
				t.Errorf("round %d: %d blocks of a holder that was forgotten", round, n)
			}
		}
		if n := w.writer.Stats().Sessions; n < 2 {
			t.Errorf("%d session: the slots lasted for long", n)
		}
		idle.exact(2, 7)
		w.exact(2, 7)
	})
}

// pair returns two writers, each with an index and a reader, that share a prefix, and a prompt for Store.
func pair(t *testing.T, s *testenv.ValkeyServer) (one, two *mirrored, prompt *kvindex.Stored, keys []block.Key) {
	t.Helper()
	b := newBench(t, s, 3)
	h, err := block.NewHasher(block.XXH3, 16)
	if err != nil {
		t.Fatal(err)
	}
	one, two = b.mirror(h, kvindex.Config{}), b.mirror(h, kvindex.Config{})
	two.writer.names, two.reader.names = one.writer.names, one.reader.names
	prompt = &kvindex.Stored{Tokens: make([]block.Token, 320), BlockSize: 16}
	for i := range uint64(20) {
		prompt.Hashes = append(prompt.Hashes, i+1)
	}
	return one, two, prompt, h.Append(nil, h.Root(block.Scope{}), 0, prompt.Tokens, nil)
}

// After FLUSHALL a server counts slots from 1. A reader that has not heard of it still knows slot 1 as another holder,
// and a writer that has not heard of it still writes under its old slots.
func TestAServerThatWasEmptiedConfusesNoHolders(t *testing.T) {
	onEach(t, func(t *testing.T, s *testenv.ValkeyServer) {
		one, two, prompt, keys := pair(t, s)
		one.index.Store(0, prompt)
		one.settle()
		if m := one.match(keys, nil); len(m) != 1 || m[0].Holder != 0 || m[0].Blocks != 20 {
			t.Fatalf("before: %v", m)
		}
		command(t, s, "FLUSHALL")
		if err := two.writer.begin(t.Context(), two.bench.client); err != nil {
			t.Fatal(err)
		}
		two.index.Store(1, prompt)
		two.settle()
		if m := one.match(keys, nil); len(m) != 0 { // the reader of one has an old table
			t.Errorf("a reader that is late claims %v", m)
		}
		one.index.Store(2, prompt)
		ops, _ := one.writer.mirror.take(nil)
		if err := one.writer.write(t.Context(), one.bench.client, ops); err != nil {
			t.Fatal(err)
		}
		if m := two.match(keys, nil); len(m) != 1 || m[0].Holder != 1 || m[0].Blocks != 20 {
			t.Errorf("a writer that is late changed the claims to %v", m)
		}
		if _, err := one.writer.step(t.Context(), one.bench.client); err == nil {
			t.Error("a writer goes on in a series that ended")
		}
	})
}

func TestASlotThatWasGivenTwiceCountsForNobody(t *testing.T) {
	one, two, prompt, keys := pair(t, testenv.StartValkey(t, "valkey"))
	one.index.Store(0, prompt)
	one.settle()
	slot := one.writer.mirror.copies()[0].slot
	text, err := json.Marshal(description{Version: descriptionVersion, Series: []byte(one.writer.names.series), Holders: []holderEntry{
		{URL: "http://worker-1", Slot: slot, Trust: "exact", BlockSize: 16, Algorithm: block.XXH3.String()},
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, c := context.Background(), one.bench.client
	c.Do(ctx, c.B().Set().Key(one.writer.names.writer("other")).Value(string(text)).Build())
	c.Do(ctx, c.B().Zadd().Key(one.writer.names.writers()).ScoreMember().ScoreMember(4e12, "other").Build())
	if err := two.reader.follow(ctx, c); err != nil {
		t.Fatal(err)
	}
	if m := two.match(keys, nil); len(m) != 0 {
		t.Errorf("a slot of two holders counts for %v", m)
	}
	one.writer.listed = one.writer.listed.Add(-2 * one.writer.config.Lease)
	one.settle() // the writer finds the other one's slot
	c.Do(ctx, c.B().Del().Key(one.writer.names.writer("other")).Build())
	one.settle() // it takes another one
	if m := one.match(keys, nil); len(m) != 1 || m[0].Holder != 0 || m[0].Blocks != 20 {
		t.Errorf("with another slot: %v", m)
	}
}

func TestChangesOfRetiredSlotsAreNotWritten(t *testing.T) {
	m := newMirror(1000)
	hear := m.listen(warmpath.MadeIndex{Model: "m", BlockSize: 16, Generation: 1})
	for h := range fleet.Holder(2) {
		hear(&kvindex.Change{Holder: h, Kind: kvindex.Regrouped, Groups: []kvindex.GroupStats{{}}})
	}
	m.assign(1, 2)
	for h := range fleet.Holder(2) {
		hear(&kvindex.Change{Holder: h, Kind: kvindex.Added, Keys: []block.Key{1, 2}})
	}
	hear(&kvindex.Change{Holder: 0, Kind: kvindex.Forgotten})
	kept := m.copies()[1].slot
	if slots := m.takeRetired(); len(slots) != 1 {
		t.Fatalf("%d slots were retired", len(slots))
	}
	if ops, _ := m.take(nil); len(ops) != 1 || ops[0].slot != kept {
		t.Errorf("%d changes are written, one of them is for the slot in use", len(ops))
	}
}
