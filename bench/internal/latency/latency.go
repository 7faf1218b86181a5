// Package latency measures the times of short calls and summarizes the times.
package latency

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Clock reads monotonic time. Two readings take about 20 ns on Linux. This is less than two calls of time.Now, and near
// the 16 ns of Rust's Instant in the program that measures the peers. The figures include this time.
type Clock struct{ base time.Time }

// NewClock starts a clock at 0.
func NewClock() Clock { return Clock{time.Now()} }

// Now returns nanoseconds since the clock was made.
func (c *Clock) Now() int64 { return int64(time.Since(c.base)) }

// Samples are durations in nanoseconds, in any order.
type Samples []uint32

// Add adds a duration. A duration above 4.29 s counts as 4.29 s.
func (s *Samples) Add(ns int64) { *s = append(*s, uint32(min(max(ns, 0), math.MaxUint32))) }

// Quantile returns the nearest-rank quantile of sorted samples, or 0 if there are no samples.
func (s Samples) Quantile(p float64) uint32 {
	if len(s) == 0 {
		return 0
	}
	rank := int(math.Ceil(float64(len(s)) * p))
	return s[min(max(rank, 1), len(s))-1]
}

// Sort sorts the samples for Quantile.
func (s Samples) Sort() { slices.Sort(s) }

// Mean returns the mean, or 0 if there are no samples.
func (s Samples) Mean() float64 {
	sum := 0.0
	for _, v := range s {
		sum += float64(v)
	}
	return sum / float64(max(len(s), 1))
}

// String sorts the samples, and returns a summary in the format of the program that measures the peers.
func (s Samples) String() string {
	s.Sort()
	return fmt.Sprintf("n=%d mean=%.0f p50=%d p90=%d p99=%d p99.9=%d max=%d",
		len(s), s.Mean(), s.Quantile(0.5), s.Quantile(0.9), s.Quantile(0.99), s.Quantile(0.999), s.Quantile(1))
}

// Distribution has quantiles in nanoseconds. The JSON names are the same as in Dynamo's benchmark.
type Distribution struct {
	P50  uint64 `json:"p50_ns"`
	P99  uint64 `json:"p99_ns"`
	P999 uint64 `json:"p999_ns"`
	Max  uint64 `json:"max_ns"`
}

// Describe sorts the given durations in nanoseconds and returns their distribution.
func Describe(values []int64) Distribution {
	if len(values) == 0 {
		return Distribution{}
	}
	slices.Sort(values)
	at := func(p float64) uint64 {
		rank := int(math.Ceil(float64(len(values)) * p))
		return uint64(max(values[min(max(rank, 1), len(values))-1], 0))
	}
	return Distribution{P50: at(0.5), P99: at(0.99), P999: at(0.999), Max: at(1)}
}
