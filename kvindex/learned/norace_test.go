//go:build !race

package learned_test

const raceEnabled = false
