package testenv

import (
	"runtime/debug"
	"testing"
)

// Race reports whether the test runs with the race detector. With the race detector, sync.Pool drops values at random,
// so a test cannot count allocations.
func Race() bool {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return false
	}
	for _, s := range info.Settings {
		if s.Key == "-race" {
			return s.Value == "true"
		}
	}
	return false
}

// SkipRaced skips a long test with one goroutine under the race detector: there can be no race, and the test would take
// ten times as long.
func SkipRaced(t *testing.T) {
	t.Helper()
	if Race() {
		t.Skip("one goroutine, nothing for the race detector: runs without it")
	}
}
