//go:build race

package learned_test

const raceEnabled = true // sync.Pool drops at random under the race detector
