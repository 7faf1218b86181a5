package block_test

import (
	"testing"

	"github.com/warmpath/warmpath/block"
)

// The expected numbers are the first ones of splitmix64.c by Sebastiano Vigna (https://prng.di.unimi.it/splitmix64.c)
// with the seed 1234567.
func TestMix64GivesTheNumbersOfSplitMix64(t *testing.T) {
	const seed = 1234567
	for i, want := range []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821} {
		if got := block.Mix64(seed + uint64(i+1)*block.Golden); got != want {
			t.Errorf("number %d: %d, want %d", i+1, got, want)
		}
	}
}
