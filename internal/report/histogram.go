package report

import (
	"math"
	"math/bits"
	"time"
)

// Histogram counts durations in buckets. The width of a bucket is at most 1/128 of its values. Its sums are exact, and
// its percentiles are exact within 0.8 %. The zero value is empty and ready. It is not safe for concurrent use.
type Histogram struct {
	counts []int64
	count  int64
	sum    float64 // nanoseconds
	min    int64
	max    int64
}

// subBits is the binary logarithm of the number of buckets for each power of two. 128 buckets keep percentiles exact
// within 0.8 %, which is less than the difference between two seeds.
const subBits = 7

func bucketOf(ns int64) int {
	if ns < 1<<subBits {
		return int(ns)
	}
	shift := bits.Len64(uint64(ns)) - subBits - 1
	return shift<<subBits + int(ns>>shift)
}

// bucketRange returns the values [from, to) of bucket i.
func bucketRange(i int) (from, to int64) {
	if i < 2<<subBits {
		return int64(i), int64(i) + 1
	}
	shift := i>>subBits - 1
	base := int64(i-shift<<subBits) << shift
	return base, base + 1<<shift
}

// Add counts d once.
func (h *Histogram) Add(d time.Duration) { h.AddN(d, 1) }

// AddN counts d n times. Negative durations count as 0.
func (h *Histogram) AddN(d time.Duration, n int64) {
	if n <= 0 {
		return
	}
	ns := max(int64(d), 0)
	i := bucketOf(ns)
	if i >= len(h.counts) {
		grown := make([]int64, max(i+1, 2*len(h.counts)))
		copy(grown, h.counts)
		h.counts = grown
	}
	h.counts[i] += n
	if h.count == 0 || ns < h.min {
		h.min = ns
	}
	h.max = max(h.max, ns)
	h.count += n
	h.sum += float64(ns) * float64(n)
}

// Count returns how many values were added.
func (h *Histogram) Count() int64 { return h.count }

// Quantile returns the value below which the share q of all values lies; 0 when there are none.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.count == 0 {
		return 0
	}
	rank := q * float64(h.count)
	seen := int64(0)
	for i, n := range h.counts {
		if n == 0 || float64(seen+n) < rank {
			seen += n
			continue
		}
		from, to := bucketRange(i)
		v := float64(from) + float64(to-from)*max(rank-float64(seen), 0)/float64(n)
		return time.Duration(min(max(int64(v), h.min), h.max))
	}
	return time.Duration(h.max)
}

// Latency returns a summary of the histogram. If cdf is set, the summary has points of the distribution.
func (h *Histogram) Latency(cdf bool) Latency {
	l := Latency{Count: h.count}
	if h.count == 0 {
		return l
	}
	l.Mean = round(h.sum / float64(h.count) / 1e6)
	l.P50, l.P90, l.P95, l.P99 = inMS(h.Quantile(.5)), inMS(h.Quantile(.9)), inMS(h.Quantile(.95)), inMS(h.Quantile(.99))
	l.Max = inMS(time.Duration(h.max))
	if cdf {
		l.CDF = h.points()
	}
	return l
}

// cdfPoints is the number of points of a distribution. With this number a curve is smooth, and a page with fifty runs
// takes only a few megabytes.
const cdfPoints = 96

// points returns the distribution at evenly spaced shares. In the last percent, where tails differ, it returns more
// points.
func (h *Histogram) points() [][2]float64 {
	points := make([][2]float64, 0, cdfPoints+16)
	add := func(q float64) { points = append(points, [2]float64{inMS(h.Quantile(q)), round(q)}) }
	for i := range cdfPoints {
		add(float64(i) / cdfPoints)
	}
	for _, q := range []float64{.99, .993, .996, .998, .999, 1} {
		add(q)
	}
	return points
}

func inMS(d time.Duration) float64 { return round(float64(d) / 1e6) }

// round keeps four decimals. More decimals are noise, and make files large.
func round(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	return math.Round(v*1e4) / 1e4
}
