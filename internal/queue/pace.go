package queue

// pace is how fast the queue moves: the mean time between two requests that leave it to be served.
type pace struct {
	last  int64   // when the last request left, Unix nanoseconds; 0 after a pause
	mean  float64 // nanoseconds
	count int     // intervals in mean
}

const (
	// enough is the number of intervals before a request is refused because of them: a few may be chance.
	enough = 8
	// weight of a new interval: the mean follows within some ten requests.
	weight = 0.1
)

func (p *pace) served(now int64) {
	if p.last != 0 {
		interval := float64(max(now-p.last, 0))
		p.count++
		p.mean += (interval - p.mean) * max(weight, 1/float64(p.count))
	}
	p.last = now
}

// pause ends the present interval: no request waits, so the time until the next one leaves says nothing.
func (p *pace) pause() { p.last = 0 }

// gap returns the time between two requests, 0 when it is not known. A gap that is longer than the mean counts with a
// quarter of its length: even at a steady pace some gaps last several times the mean.
func (p *pace) gap(now int64) int64 {
	gap := int64(p.mean)
	if p.last != 0 {
		gap = max(gap, (now-p.last)/4)
	}
	return gap
}

// wait returns how long the n-th request in the queue will wait. known is false while few requests were served.
func (p *pace) wait(n int, now int64) (ns int64, known bool) {
	return int64(n) * p.gap(now), p.count >= enough
}
