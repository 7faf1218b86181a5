package fleet

import (
	"testing"
	"time"
)

// TestOneSlowMachineIsBelievedLessThanOneOfMany: a machine takes twice as long as its kind during its first 20 s. If
// all other machines are alike, the difference is probably chance, and the router believes only a part of it. If the
// machines of the kind differ as much from each other, the router believes most of the difference.
func TestOneSlowMachineIsBelievedLessThanOneOfMany(t *testing.T) {
	believed := func(others func(i int) float64) (share float64) {
		m := newMachines(16, cpu)
		m.each(20*time.Second, 100*time.Millisecond, func(i int) float64 {
			if i == 0 {
				return 2
			}
			return others(i)
		})
		p := m.pace(0)
		if !p.Believed || p.Factor < p.Low || p.Factor > p.Measured {
			t.Errorf("%+v", p)
		}
		return (p.Factor - 1) / (p.Measured - 1)
	}
	alone := believed(func(int) float64 { return 1 })
	among := believed(func(i int) float64 { return []float64{1, 2, 0.5, 1}[i%4] })
	if alone > 0.6 || among < 0.7 {
		t.Errorf("the router believes a share of %.2f of the measured difference of an outlier, and %.2f of that of one of many", alone, among)
	}
}
