package testenv

import "runtime/debug"

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
