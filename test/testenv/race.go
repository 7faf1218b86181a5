package testenv

import "runtime/debug"

// Race reports whether the test runs under the race detector, which makes sync.Pool drop values at random: allocations
// cannot be counted then.
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
