package sharedindex

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/test/testenv"
)

// readBy lets a router with these options be the one that a reader reads for.
func readBy(t *testing.T, r *Reader, o warmpath.Options) *warmpath.Router {
	t.Helper()
	o.Fleet, o.RemoteIndex = r.parts.Fleet, true
	router, err := warmpath.New(o)
	if err != nil {
		t.Fatal(err)
	}
	r.parts.Keying, r.parts.SetBlockSize = router.Keying, router.SetBlockSize
	return router
}

func TestARouterWithAnotherHashFunctionIsTold(t *testing.T) {
	s := testenv.StartValkey(t, "valkey")
	w := start(t, func(c *Config) { c.URL = "valkey://" + s.Address }, func(w *world) {
		readBy(t, w.reader, warmpath.Options{Algorithm: block.FNV1a})
	})
	w.store(0, 1)
	const setting = "set routing.block_keys and routing.block_size alike"
	testenv.Until(t, "the trust and the log name the settings", func() bool {
		level, why := w.asked.Snapshot().Trust(0)
		return level == fleet.TrustNone && strings.Contains(why, "made by xxh3 with blocks of 16 tokens: "+setting) &&
			strings.Contains(w.log.String(), "level=ERROR")
	})
	w.store(1, 2) // so the reader has looked again
	testenv.Until(t, "the second holder is not trusted either", func() bool {
		_, why := w.asked.Snapshot().Trust(1)
		return strings.Contains(why, setting)
	})
	if n := strings.Count(w.log.String(), "level=ERROR"); n != 1 {
		t.Errorf("the log says it %d times:\n%s", n, w.log.String())
	}
	if n := w.reader.Stats().Holders; n != 0 {
		t.Errorf("%d holders count", n)
	}
}

func TestARouterTakesTheBlockSizeOfTheSharedIndex(t *testing.T) {
	s := testenv.StartValkey(t, "valkey")
	var router *warmpath.Router
	w := start(t, func(c *Config) { c.URL = "valkey://" + s.Address }, func(w *world) {
		router = readBy(t, w.reader, warmpath.Options{BlockSize: 8})
		if _, size, _ := router.Keying("m"); size != 8 {
			t.Fatalf("the router has blocks of %d tokens", size)
		}
	})
	testenv.Until(t, "the writer's word counts", func() bool { return w.trust(0) == fleet.TrustExact })
	if _, size, _ := router.Keying("m"); size != 8 || strings.Contains(w.log.String(), "takes its size") {
		t.Errorf("of a writer that has no blocks yet, the router takes %d tokens; the log:\n%s", size, w.log.String())
	}
	w.store(0, 1)
	testenv.Until(t, "the router has the size, and the holder is trusted", func() bool {
		_, size, _ := router.Keying("m")
		return size == 16 && w.trust(0) == fleet.TrustExact
	})
	testenv.Until(t, "the prompt is found", func() bool { return w.answer(0, 1) == 40 })
	if text := w.log.String(); strings.Count(text, "takes its size") != 1 || strings.Contains(text, "level=ERROR") {
		t.Errorf("the log:\n%s", text)
	}
}

// A router that took the size of one writer after that of the other would forget its prompts each time.
func TestOfWritersThatDisagreeTheOneWithTheRoutersKeysCounts(t *testing.T) {
	var log testenv.Buffer
	r := NewReader(DefaultConfig(), ReaderParts{Fleet: fleetOf(2), Log: slog.New(slog.NewTextHandler(&log, nil))})
	router := readBy(t, r, warmpath.Options{})
	entry := func(worker string, slot uint32, size int) holderEntry {
		return holderEntry{URL: "http://" + worker, Model: "m", BlockSize: size, Algorithm: "xxh3", Slot: slot, Trust: "exact"}
	}
	one := &description{Holders: []holderEntry{entry("worker-0", 1, 8), entry("worker-1", 2, 8)}}
	two := &description{Holders: []holderEntry{entry("worker-0", 3, 16)}}
	for range 2 {
		r.use("", []*description{one, two}, 2, nil)
		if t0, why := r.parts.Fleet.Snapshot().Trust(0); t0 != fleet.TrustExact || r.table.Load().bySlot[3] != 0 || len(r.table.Load().seats) != 1 {
			t.Errorf("trust %v: %s, table %+v", t0, why, r.table.Load())
		}
		if t1, why := r.parts.Fleet.Snapshot().Trust(1); t1 != fleet.TrustNone || !strings.Contains(why, "blocks of 8 tokens") {
			t.Errorf("trust %v: %s", t1, why)
		}
	}
	if _, size, _ := router.Keying("m"); size != 16 || strings.Count(log.String(), "level=ERROR") != 1 {
		t.Errorf("blocks of %d tokens; the log:\n%s", size, log.String())
	}
	r.use("", []*description{one}, 1, nil) // the other writer ended
	if _, size, _ := router.Keying("m"); size != 8 || len(r.table.Load().seats) != 2 {
		t.Errorf("blocks of %d tokens, %d holders", size, len(r.table.Load().seats))
	}
}

// Placements of a router with other keys, or of an earlier block size of this router, are no error.
func TestARouterSaysWhichLearnedPlacementsItCannotFind(t *testing.T) {
	var log testenv.Buffer
	r := NewReader(DefaultConfig(), ReaderParts{Fleet: fleetOf(1), Log: slog.New(slog.NewTextHandler(&log, nil)), LearnedTTL: time.Minute})
	readBy(t, r, warmpath.Options{})
	r.parts.Fleet.SetTrust(0, fleet.TrustApproximate, "test")
	w := r.parts.Fleet.Snapshot().Workers()[0]
	signs, _, _ := r.parts.Fleet.Signs(w.ID)
	type keys struct {
		size      int
		algorithm block.Algorithm
	}
	slots := func(all ...keys) *placedSlots {
		p := &placedSlots{slots: map[string]uint32{}}
		for i, k := range all {
			p.slots["1 "+placedHolder(processName(signs), 0, k.size, k.algorithm, w.URL)] = uint32(i + 1)
		}
		return p
	}
	for range 2 {
		r.use("", nil, 0, slots(keys{16, block.XXH3}, keys{16, block.FNV1a}))
		if n := len(r.table.Load().learned.seats); n != 1 {
			t.Errorf("%d holders", n)
		}
	}
	if text := log.String(); strings.Count(text, "learned placements") != 1 || !strings.Contains(text, "there=fnv1a") || strings.Contains(text, "level=ERROR") {
		t.Errorf("the log:\n%s", text)
	}
	r.use("", nil, 0, slots(keys{16, block.XXH3}))
	r.use("", nil, 0, slots(keys{8, block.XXH3}))
	if text := log.String(); strings.Count(text, "learned placements") != 2 || !strings.Contains(text, "there_block_size=8") {
		t.Errorf("the log:\n%s", text)
	}
}
