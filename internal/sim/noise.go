package sim

import "time"

// Disturbance is other work on a worker's machine for some time. During a disturbance the worker's passes take longer.
type Disturbance struct {
	At     time.Duration // time after the first arrival
	For    time.Duration
	Worker int     // number of the rank, counted from 0 over all groups
	Factor float64 // factor on the time of a pass that begins during the disturbance
}

// noisy reports whether the time of r's passes depends on more than the batch. If so, each pass is played by itself.
func (r *rank) noisy() bool {
	return r.group.Noise > 0 || len(r.disturbed) > 0 || !r.group.Frontend.idle()
}

// disturb returns the duration of a pass of r that begins now. d is the duration without other work.
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
