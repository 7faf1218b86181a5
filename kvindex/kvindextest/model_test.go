package kvindextest_test

import (
	"os"
	"strconv"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/kvindex/kvindextest"
)

// steps is the number of operations in one history of the model test. So long a history has engine blocks of other
// sizes, holes and groups together.
const steps = 120

// asked returns the number of operations in the variable WARMPATH_MODEL_OPS (`make model` sets 10^8), or 0 if the
// variable is not set.
func asked() int {
	n, _ := strconv.Atoi(os.Getenv("WARMPATH_MODEL_OPS"))
	return n
}

// operations returns the number of operations of the model test.
func operations() int {
	switch {
	case asked() > 0:
		return asked()
	case testing.Short():
		return 10_000
	case os.Getenv("CI") != "":
		return 1_000_000 // this takes half a minute
	}
	return 100_000
}

// seed returns the seed of all histories. Without variables the seed is constant, so that each run has the same result.
// If WARMPATH_MODEL_OPS is set, the seed is 0, which means a new seed for each run. WARMPATH_MODEL_SEED sets the seed.
func seed() uint64 {
	if named, err := strconv.ParseUint(os.Getenv("WARMPATH_MODEL_SEED"), 10, 64); err == nil {
		return named
	}
	if asked() > 0 {
		return 0
	}
	return 20_261_121
}

// progress logs how far a run with WARMPATH_MODEL_OPS is: 10^8 operations take an hour.
func progress(t *testing.T, histories int) func(int) {
	if asked() == 0 {
		return nil
	}
	return func(done int) { t.Logf("%d of %d histories", done, histories) }
}

func TestIndexAnswersAsTheReference(t *testing.T) {
	n := (operations() + steps - 1) / steps
	kvindextest.Model(t, kvindextest.Kvindex, kvindextest.Effort{Runs: n, Steps: steps, Seed: seed(), Progress: progress(t, n)})
	t.Logf("%d operations", n*steps)
}

func TestIndexClaimsNoMoreWhileItEvicts(t *testing.T) {
	kvindextest.Evicting(t, kvindextest.Kvindex, kvindextest.Effort{Runs: runs() / 25, Steps: 100, Seed: seed(), Progress: progress(t, runs()/25)})
}

// attacks returns the number of operations of the test with hostile holders.
func attacks() int {
	switch {
	case asked() > 0:
		return asked()
	case testing.Short():
		return 20_000
	}
	return 100_000
}

func TestIndexClaimsNoMoreBesideHostileHolders(t *testing.T) {
	const steps = 5000 // each history fills an index first, which takes as long as some thousand operations
	n := (attacks() + steps - 1) / steps
	kvindextest.Hostile(t, kvindextest.Kvindex, kvindextest.Effort{Runs: n, Steps: steps, Seed: seed(), Progress: progress(t, n)})
	t.Logf("%d operations", n*steps)
}

// runs returns the number of histories of modelled engines.
func runs() int {
	switch {
	case asked() > 0:
		return asked() / 1000
	case testing.Short():
		return 50
	}
	return 300
}

func TestIndexClaimsWhatEnginesHave(t *testing.T) {
	kvindextest.Truth(t, kvindextest.Kvindex, kvindextest.Effort{Runs: runs(), Steps: 80, Seed: seed(), Progress: progress(t, runs())})
}

func TestIndexConforms(t *testing.T) { kvindextest.Conformance(t, kvindextest.Kvindex) }

// An operator who comes from llm-d-kv-cache sets only a budget in bytes, as for its cost-aware backend (2 GiB). This
// setting alone must be enough for a conforming index.
func TestABudgetInBytesIsEnough(t *testing.T) {
	const budget = 2 << 30
	kvindextest.Conformance(t, func(h *block.Hasher, cfg kvindex.Config) *kvindextest.Door {
		if cfg.Bytes == 0 {
			cfg.Bytes = budget
		}
		d := kvindextest.Kvindex(h, cfg)
		if got := d.Stats().Budget; got != cfg.Bytes {
			t.Errorf("a budget of %d bytes became %d", cfg.Bytes, got)
		}
		return d
	})
}

func FuzzHistory(f *testing.F) {
	f.Add([]byte("\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f"))
	f.Add([]byte("a history is a string of choices, and this sentence is as good a one as any other that is long enough"))
	f.Fuzz(func(t *testing.T, data []byte) { kvindextest.Fuzz(t, kvindextest.Kvindex, data) })
}
