//go:build race

package peers

// raceEnabled: the race detector makes sync.Pool drop values at random, so that allocations cannot be counted.
const raceEnabled = true
