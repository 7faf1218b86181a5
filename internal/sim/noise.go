package sim

import "time"

// Disturbance is a period in which other work on the machine makes the passes of one rank slower.
type Disturbance struct {
	At     time.Duration // time after the first arrival
	For    time.Duration
	Worker int     // index of the rank, counted from 0 over all groups
	Factor float64 // factor on the duration of a pass that begins in the period
}

// noisy reports whether the duration of r's passes depends on more than the batch. If so, playSteady cannot play
// several passes with one call.
func (r *rank) noisy() bool {
	return r.group.Noise > 0 || len(r.disturbed) > 0 || !r.group.Frontend.idle()
}

// disturb returns the duration of a pass of r that begins now. d is the duration without noise and disturbances.
func (w *world) disturb(r *rank, d time.Duration) time.Duration {
	factor := 1.0
	if s := r.group.Noise; s > 0 {
		factor = max(1+s*w.random.NormFloat64(), 0.1)
	}
	for _, x := range r.disturbed {
		if w.now >= x.At && w.now < x.At+x.For {
			factor *= x.Factor
		}
	}
	return time.Duration(float64(d) * factor)
}
