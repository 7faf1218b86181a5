//go:build race

package loadgen

// underRace is true under the race detector, which makes fits ten to twenty times slower.
const underRace = true
