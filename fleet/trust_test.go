package fleet

import "testing"

func TestNamesOfTrustAreReadAsTheyAreWritten(t *testing.T) {
	for level := TrustNone; level <= TrustExact; level++ {
		if got := ParseTrust(level.String()); got != level {
			t.Errorf("%v is read as %v", level, got)
		}
	}
	for _, name := range []string{"", "unknown", "Exact", "perfect", Trust(9).String()} {
		if got := ParseTrust(name); got != TrustNone {
			t.Errorf("%q is read as %v: a level that nobody knows must not be believed", name, got)
		}
	}
}
