package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/internal/sim"
)

// printCapacities prints, for each row, the capacity of every seed and the median. levels has indexes of service
// levels.
func printCapacities(w io.Writer, rows []row, levels []int, parallel int) {
	seeds := len(rows[0].configs)
	next := begin(len(rows)*seeds, parallel, func(i int) []float64 {
		s := search{config: rows[i/seeds].configs[i%seeds][0], played: map[float64][]float64{}}
		var limits []float64
		for _, level := range levels {
			limits = append(limits, s.limit(level))
		}
		return limits
	})
	heads := "| policy |"
	for _, level := range levels {
		heads += fmt.Sprintf(" %s at 90 %%, by seed | median |", figures[len(figures)-2+level].head)
	}
	fmt.Fprintln(w, heads)
	fmt.Fprintln(w, "|"+strings.Repeat("---|", 1+2*len(levels)))
	for _, r := range rows {
		bySeed := make([][]float64, seeds)
		for seed := range bySeed {
			bySeed[seed] = next()
		}
		cells := []string{r.name}
		for i := range levels {
			var limits []float64
			text := ""
			for _, l := range bySeed {
				limits = append(limits, l[i])
				text += fmt.Sprintf(" %.2f", l[i])
			}
			cells = append(cells, text[1:], fmt.Sprintf("%.2f", median(limits)))
		}
		fmt.Fprintln(w, "| "+strings.Join(cells, " | ")+" |")
	}
}

func median(values []float64) float64 {
	values = slices.Sorted(slices.Values(values))
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// search finds the limits of one policy with one seed.
type search struct {
	config sim.Config
	played map[float64][]float64 // by rate: the shares of all requests that keep each service level
}

// kept reports whether 90 % of the requests keep a service level at a rate.
func (s *search) kept(rate float64, level int) bool {
	if s.played[rate] == nil {
		c := s.config
		c.Rate = rate
		for _, share := range play(c).SLO {
			s.played[rate] = append(s.played[rate], share.Share)
		}
	}
	return s.played[rate][level] >= 0.9
}

// limit returns the largest rate at which 90 % of the requests keep the service level, with an error of at most 1 %.
// level is the index of the service level.
func (s *search) limit(level int) float64 {
	const step, exact = 1.25, 1.01
	first := s.config.Rate
	low, high := first, first
	for !s.kept(low, level) {
		low /= step
		if low < first/100 {
			return 0
		}
	}
	for high = max(low*step, high); s.kept(high, level); high *= step {
		if low = high; high > 100*first {
			return low // the workload is too short to break the level at any rate
		}
	}
	for high/low > exact {
		if middle := (low + high) / 2; s.kept(middle, level) {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}
