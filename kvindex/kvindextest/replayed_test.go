package kvindextest_test

import (
	"testing"

	"github.com/warmpath/warmpath/kvindex/kvindextest"
)

// These tests run the same histories as those of the index alone. After each operation, a naive index that was told
// the changes must give the same answers as the index.

func TestChangesGiveTheIndexAfterRandomOperations(t *testing.T) {
	n := (operations()/4 + steps - 1) / steps
	kvindextest.Model(t, kvindextest.Replayed, kvindextest.Effort{Runs: n, Steps: steps, Seed: seed()})
}

func TestChangesGiveTheIndexInEveryCaseOfConformance(t *testing.T) {
	kvindextest.Conformance(t, kvindextest.Replayed)
}

func TestChangesTellWhatTheIndexEvicts(t *testing.T) {
	kvindextest.Evicting(t, kvindextest.Replayed, kvindextest.Effort{Runs: max(runs()/100, 1), Steps: 60, Seed: seed()})
}

func TestChangesGiveTheIndexBesideHostileHolders(t *testing.T) {
	kvindextest.Hostile(t, kvindextest.Replayed, kvindextest.Effort{Runs: max(attacks()/50_000, 1), Steps: 3000, Seed: seed()})
}

func TestChangesGiveTheCachesOfEngines(t *testing.T) {
	kvindextest.Truth(t, kvindextest.Replayed, kvindextest.Effort{Runs: runs() / 5, Steps: 80, Seed: seed()})
}
