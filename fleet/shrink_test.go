package fleet

import (
	"testing"
	"time"
)

// TestOneSlowMachineIsBelievedLessThanOneOfMany: in its first 20 s a machine takes twice as long. If all other machines
// are alike, this is probably chance, and only a part of the difference is believed. If machines differ as much in
// general, most of it is believed.
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
		t.Errorf("%.2f of what is measured is believed of an outlier, %.2f of one of many", alone, among)
	}
}
