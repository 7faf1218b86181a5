package spelling

import "testing"

func TestDistanceCountsSteps(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "ab", 2}, {"lease", "lease", 0}, {"lease", "leases", 1}, {"lease", "lase", 1}, {"lease", "leasa", 1},
		{"lease", "laese", 1}, {"leasse", "laese", 2}, {"ca", "abc", 3},
	} {
		for _, pair := range [][2]string{{c.a, c.b}, {c.b, c.a}} {
			if got := Distance(pair[0], pair[1]); got != c.want {
				t.Errorf("Distance(%q, %q) = %d, want %d", pair[0], pair[1], got, c.want)
			}
		}
	}
}
