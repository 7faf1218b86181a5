package queue

// pace is the speed of the queue: the mean time between two requests that leave the queue to be served.
type pace struct {
	last  int64   // time at which the last request left, in Unix nanoseconds; 0 after a pause
	mean  float64 // mean time between two requests, in nanoseconds
	count int     // number of intervals in mean
}

const (
	// enough is the number of intervals in the mean from which on a request may be refused because of the pace. With
	// fewer intervals, the mean may be chance.
	enough = 8
	// weight is the weight of a new interval. With this weight the mean follows a change within about ten requests.
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

// pause is called when no request waits. It drops the present interval: without waiting requests, the time until the
// next request leaves shows nothing about the pace.
func (p *pace) pause() { p.last = 0 }

// gap returns the mean time between two requests, or 0 if the mean is not known. If a quarter of the present gap is
// longer than the mean, gap returns this quarter. The whole gap would be too much: even at a steady pace some gaps last
// several times the mean.
func (p *pace) gap(now int64) int64 {
	gap := int64(p.mean)
	if p.last != 0 {
		gap = max(gap, (now-p.last)/4)
	}
	return gap
}

// wait returns how long the n-th request in the queue will wait. known is false if too few requests were served.
func (p *pace) wait(n int, now int64) (ns int64, known bool) {
	return int64(n) * p.gap(now), p.count >= enough
}
