package tenant

import "strings"

// Allows reports whether the tenant may use a model, by the name that the client writes.
func (t *Tenant) Allows(model string) bool { return allows(t.Models, model) }

// allows reports whether a model matches one of the patterns. Without patterns every model matches.
func allows(patterns []string, model string) bool {
	if len(patterns) == 0 {
		return true
	}
	for _, p := range patterns {
		if matches(p, model) {
			return true
		}
	}
	return false
}

// matches reports whether name matches the pattern, in which each star stands for any text, also an empty one. It takes
// time in proportion to the length of the name and the number of stars.
func matches(pattern, name string) bool {
	first, rest, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == name
	}
	name, ok := strings.CutPrefix(name, first)
	if !ok {
		return false
	}
	for {
		part, after, more := strings.Cut(rest, "*")
		if !more {
			return strings.HasSuffix(name, part)
		}
		// The leftmost occurrence leaves the longest rest, so no other occurrence has to be tried.
		at := strings.Index(name, part)
		if at < 0 {
			return false
		}
		name, rest = name[at+len(part):], after
	}
}
