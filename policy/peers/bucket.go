package peers

import (
	"slices"
	"sync"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// Bucket sends prompts of similar length to the same worker, so that short prompts do not wait behind long ones. Each
// worker has a bucket: a range of lengths. The bounds between the buckets follow the prompts of the last seconds [SMG
// 1.9.0, model_gateway/src/policies/bucket.rs, for prefill workers]. The length of a prompt is the number of bytes of
// its text; each byte counts as one character. If the text is not known, each token counts as four characters.
type Bucket struct {
	// BalanceAbsThreshold is a number of characters. The policy compares the workers by the characters that were sent to
	// them within the interval. If the greatest number exceeds the smallest number by more than BalanceAbsThreshold, and
	// is more than balance_rel_threshold times the smallest number, the worker with the smallest number is taken, for
	// prompts of any length.
	BalanceAbsThreshold int `yaml:"balance_abs_threshold"`
	// BalanceRelThreshold is the factor in the rule of balance_abs_threshold.
	BalanceRelThreshold float64 `yaml:"balance_rel_threshold"`
	// BucketAdjustIntervalSecs is the time in seconds between two computations of the bounds. Each computation uses the
	// prompts of the last such interval.
	BucketAdjustIntervalSecs int `yaml:"bucket_adjust_interval_secs"`
}

// DefaultBucket returns SMG's defaults.
func DefaultBucket() Bucket {
	return Bucket{BalanceAbsThreshold: 32, BalanceRelThreshold: 1.0001, BucketAdjustIntervalSecs: 5}
}

// Validate returns all problems.
func (p Bucket) Validate() error {
	var wrong policy.Problems
	wrong.AtLeast("balance_abs_threshold", float64(p.BalanceAbsThreshold), 0)
	wrong.AtLeast("balance_rel_threshold", p.BalanceRelThreshold, 1)
	wrong.Within("bucket_adjust_interval_secs", float64(p.BucketAdjustIntervalSecs), 1, 3600)
	return wrong.Join()
}

// Spec returns the policy.
func (p Bucket) Spec(name string) policy.Spec {
	return policy.Spec{Name: name, Terms: []string{"bucket", "characters"}, Chooser: func() policy.Chooser {
		return &buckets{Bucket: p, interval: int64(p.BucketAdjustIntervalSecs) * int64(time.Second)}
	}}
}

// buckets is the chooser of a Bucket. All workers share one window, so there is only one lock. Once an interval, the
// lock is held while the window is sorted.
type buckets struct {
	Bucket
	interval int64 // nanoseconds

	mu       sync.Mutex // guards the fields below
	window   []dispatch // requests of the last interval, oldest first; the entries before head have expired
	head     int
	sent     []int64 // characters in the window by holder
	total    int64
	bounds   []int64 // the greatest length in characters of each bucket except the last one, ascending
	target   int64   // number of characters for each bucket when the bounds were computed last
	adjusted int64   // when the bounds were computed last, Unix nanoseconds
}

type dispatch struct {
	at     int64
	length int64
	holder fleet.Holder
}

// maxWindow is the greatest number of requests in the window: 13,000 requests a second for five seconds. If there are
// more, the oldest requests do not count.
const maxWindow = 1 << 16

// Before any bounds are computed, the buckets divide the lengths from 0 to firstBuckets characters evenly. The last
// bucket has all greater lengths, too.
const firstBuckets = 4096

func length(q *policy.Query) int64 {
	if n := max(len(q.Prompt.Text), q.Prompt.TextBytes); n > 0 {
		return int64(n)
	}
	return 4 * int64(q.PromptTokens)
}

func (b *buckets) Choose(q *policy.Query, c []policy.Candidate) policy.Pick {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expire(q.Now)
	most := 0
	for i := range c {
		n := b.sentTo(c[i].Holder)
		c[i].Terms[1] = float64(n)
		c[i].Score = 0 - float64(n)
		if n > b.sentTo(c[most].Holder) {
			most = i
		}
	}
	fewest := policy.AnyBest(q, c)
	few, many := b.sentTo(c[fewest].Holder), b.sentTo(c[most].Holder)
	if many-few > int64(b.BalanceAbsThreshold) && float64(many) > float64(few)*b.BalanceRelThreshold {
		return policy.Pick{Index: fewest, Branch: policy.BranchBalance, Ranked: true, Tie: policy.TieHash}
	}
	at := b.bucket(length(q), len(c))
	i := nth(c, at)
	c[i].Terms[0] = float64(at)
	return policy.Pick{Index: i, Branch: policy.BranchBucket}
}

// bucket returns to which of m buckets a length belongs, counted from 0. Until there are bounds for m buckets, all
// buckets are equally wide.
func (b *buckets) bucket(length int64, m int) int {
	if len(b.bounds) != m-1 {
		return int(min(length*int64(m)/firstBuckets, int64(m-1)))
	}
	at, _ := slices.BinarySearch(b.bounds, length)
	return at
}

func (b *buckets) Routed(q *policy.Query, c *policy.Candidate) {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := dispatch{q.Now, length(q), c.Holder}
	for int(c.Holder) >= len(b.sent) {
		b.sent = append(b.sent, 0)
	}
	b.sent[c.Holder] += d.length
	b.total += d.length
	b.window = append(b.window, d)
	b.expire(q.Now)
	if q.Now-b.adjusted >= b.interval {
		b.adjusted = q.Now
		b.adjust()
	}
}

// expire removes from the window the dispatches older than the interval, and the oldest dispatches beyond maxWindow. mu
// is held.
func (b *buckets) expire(now int64) {
	for b.head < len(b.window) && (now-b.window[b.head].at >= b.interval || len(b.window)-b.head > maxWindow) {
		old := b.window[b.head]
		b.sent[old.holder] -= old.length
		b.total -= old.length
		b.head++
	}
	if b.head > len(b.window)/2 {
		b.window = append(b.window[:0], b.window[b.head:]...)
		b.head = 0
	}
}

// adjust computes bounds that divide the window's characters evenly among the m holders that got requests in the
// window. The target is the number of characters divided by m. If there are bounds for m buckets already, and the
// target is at least half and at most twice the old one, adjust keeps the bounds. mu is held.
func (b *buckets) adjust() {
	m := 0
	for _, n := range b.sent {
		if n > 0 {
			m++
		}
	}
	if m == 0 {
		return
	}
	target := b.total / int64(m)
	if len(b.bounds) == m-1 && target <= 2*b.target && b.target <= 2*target {
		return
	}
	b.target = target
	lengths := make([]int64, 0, len(b.window)-b.head)
	for _, d := range b.window[b.head:] {
		lengths = append(lengths, d.length)
	}
	slices.Sort(lengths)
	b.bounds = b.bounds[:0]
	sum := int64(0)
	for _, n := range lengths {
		if sum += n; sum >= target && len(b.bounds) < m-1 {
			b.bounds = append(b.bounds, n)
			sum = 0
		}
	}
	for len(b.bounds) < m-1 { // a few long prompts have most characters: the remaining bounds are the greatest length
		b.bounds = append(b.bounds, lengths[len(lengths)-1])
	}
}

func (b *buckets) sentTo(h fleet.Holder) int64 {
	if int(h) >= len(b.sent) {
		return 0
	}
	return b.sent[h]
}

func (b *buckets) Finished(*policy.Finished) {}

// Forget does nothing: lengths and characters do not depend on caches.
func (b *buckets) Forget(fleet.Holder) {}

// nth returns the index of the candidate with the n-th lowest holder number, counted from 0. Candidates are mostly in
// ascending order of holders already.
func nth(c []policy.Candidate, n int) int {
	sorted := true
	for i := 1; i < len(c) && sorted; i++ {
		sorted = c[i-1].Holder < c[i].Holder
	}
	if sorted {
		return n
	}
	for i := range c {
		before := 0
		for j := range c {
			if c[j].Holder < c[i].Holder {
				before++
			}
		}
		if before == n {
			return i
		}
	}
	return 0
}
