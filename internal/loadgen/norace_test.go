//go:build !race

package loadgen

const underRace = false
