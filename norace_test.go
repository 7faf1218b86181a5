//go:build !race

package warmpath_test

const raceEnabled = false
