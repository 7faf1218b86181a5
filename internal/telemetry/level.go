package telemetry

import "strconv"

// UnconfiguredLevel is the common name of all service levels that only a request's header names.
const UnconfiguredLevel = "request"

// maxLevels bounds the number of different values of the label level. Few operators have more than a handful of service
// levels, but each tenant and each reload may bring new ones.
const maxLevels = 64

// Answered counts a complete answer for a service level of its request. level is the level's name or
// UnconfiguredLevel.
func (t *Telemetry) Answered(level string, kept bool) {
	t.levels.WithLabelValues(t.addLevel(level), strconv.FormatBool(kept)).Inc()
}

// addLevel creates both series of a new service level, because an alert needs the series of kept answers also if there
// are none. It returns the value of the label level.
func (t *Telemetry) addLevel(level string) string {
	t.levelMu.Lock()
	defer t.levelMu.Unlock()
	if t.levelNames[level] {
		return level
	}
	switch {
	case level == UnconfiguredLevel:
	case len(t.levelNames) >= maxLevels:
		return "other"
	default:
		t.levelNames[level] = true
	}
	t.levels.WithLabelValues(level, "true")
	t.levels.WithLabelValues(level, "false")
	return level
}
