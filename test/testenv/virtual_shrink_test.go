package testenv_test

import (
	"io"
	"slices"
	"testing"
)

// shrink shortens a failing history by delta debugging: it tries to remove halves, quarters, and so on down to single
// steps [Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input, 2002]. It returns the shortest
// history that failed, and the problems of this history.
func shrink(t *testing.T, h history, why string) (history, string) {
	best := h
	for parts := 2; len(best.Steps) > 0; {
		size := max(1, len(best.Steps)/parts)
		smaller := false
		for at := 0; at < len(best.Steps); at += size {
			c := best
			c.Steps = slices.Concat(best.Steps[:at], best.Steps[min(at+size, len(best.Steps)):])
			if now := fails(t, c); now != "" {
				best, why, smaller = c, now, true
				at -= size
			}
		}
		if size == 1 && !smaller {
			break
		}
		if !smaller {
			parts *= 2
		}
	}
	return best, why
}

// fails plays a history until it fails, at most tries times. It returns the problems, or "".
func fails(t *testing.T, h history) string {
	for range tries {
		if why := run(t, h, io.Discard); why != "" {
			return why
		}
	}
	return ""
}
