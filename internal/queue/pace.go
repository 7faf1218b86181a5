package queue

// pace is how fast the queue moves: a mean of the time between two requests that leave it to be served.
type pace struct {
	last  int64   // when the last one left, Unix nanoseconds; 0 after a pause
	mean  float64 // nanoseconds
	count int     // intervals in mean
}

const (
	// enough intervals before anyone is refused by them: a handful is chance.
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

// pause: nobody waits, so that the time until the next one leaves says nothing.
func (p *pace) pause() { p.last = 0 }

// gap is the time between two now, 0 when it is not known. Long silence counts, too; a quarter of it, because even at a
// steady pace some silences are some times the mean.
func (p *pace) gap(now int64) int64 {
	gap := int64(p.mean)
	if p.last != 0 {
		gap = max(gap, (now-p.last)/4)
	}
	return gap
}

// wait is how long the n-th in the queue will wait, as far as is known.
func (p *pace) wait(n int, now int64) (ns int64, known bool) {
	return int64(n) * p.gap(now), p.count >= enough
}
