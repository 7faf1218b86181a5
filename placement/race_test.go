//go:build race

package placement

const raceEnabled = true // sync.Pool drops at random under the race detector
