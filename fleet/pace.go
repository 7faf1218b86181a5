package fleet

import (
	"math"
	"sync/atomic"
)

// pace is how much longer a holder's passes take than its kind's, as a logarithm. It is a Kalman filter with two
// states: the level, which lasts, and the transient, which other work on the machine brings and takes away [Kalman
// 1960]. Only their sum is measured. The transient is an Ornstein-Uhlenbeck process: its autocorrelation falls with a
// time constant. So several measurements within a minute carry the same information about the level, and evidence grows
// with time: measurements over t seconds are worth about 1 + t/(2·transientFor) independent ones [Bayley and Hammersley
// 1946, the effective number of independent observations]. The kind's mutex guards everything except the atomic.
type pace struct {
	level, transient                             float64
	levelVariance, covariance, transientVariance float64 // the covariance matrix
	at                                           int64   // of the last measurement, Unix nanoseconds; 0: none
	samples                                      int
	misfit                                       float64 // running mean of innovation²/its variance: 1 where the model fits
	taught                                       float64 // measurements that count for the kind, fading with taughtFor
	away                                         bool    // the kind learns nothing from it: one factor does not explain its times
	current                                      Pace    // of the last survey

	factor atomic.Uint64 // the bits of the factor that readers use: 1 unless it is believed
}

// Constants of the filter.
const (
	// firstLevel is the variance of an unknown level: one standard deviation is a factor of e either way. So the
	// interval comes from the measurements, and the assumption does not matter.
	firstLevel = 1.0
	// levelDrift is by how much the level's variance grows in a second: what is learned in an hour fades in another
	// hour.
	levelDrift = 2e-5
	// stationaryVariance is the transient's variance before any measurement: other work on the machine makes passes
	// take 20 % longer or shorter, and sometimes 50 % longer.
	stationaryVariance = 0.04
	// transientFor is its time constant in seconds: a build, a backup or a batch job lasts minutes.
	transientFor = 60
	// leastNoise is the variance of a single measurement at the least: engines do not repeat a pass to better than 2 %.
	leastNoise = 4e-4
	// mostVariance is the variance below which there is evidence of the level.
	mostVariance = 0.25
	// fewSamples is how many measurements make evidence: with fewer, the kind's times may be as new as the holder's.
	fewSamples = 8
	// within is half of a 95 % confidence interval in standard errors.
	within = 1.96
	// alike is the factor within which machines count as equal: a pace is believed if its interval lies outside.
	alike = 1.1
	// farthest is the greatest factor that is believed. A slower holder counts as this slow. A holder that seems to be
	// faster than 1/farthest gets factor 1: otherwise a worker that reports untrue lengths of its answers would
	// attract most requests.
	farthest = 4
)

// start resets the pace.
func (p *pace) start() {
	p.level, p.transient, p.levelVariance, p.covariance, p.transientVariance = 0, 0, firstLevel, 0, stationaryVariance
	p.at, p.samples, p.misfit, p.taught, p.away, p.current = 0, 0, 1, 0, false, Pace{Factor: 1}
	p.factor.Store(math.Float64bits(1))
}

// believed returns the factor that readers use.
func (p *pace) believed() float64 { return math.Float64frombits(p.factor.Load()) }

// varianceAt returns the level's variance at now.
func (p *pace) varianceAt(now int64) float64 {
	return min(p.levelVariance+levelDrift*max(float64(now-p.at), 0)/1e9, firstLevel)
}

// elapse moves the filter to now. If the clock was set back, no time passes.
func (p *pace) elapse(now int64) {
	if p.at != 0 && now > p.at {
		keep := math.Exp(-float64(now-p.at) / (transientFor * 1e9))
		p.levelVariance = p.varianceAt(now)
		p.transient *= keep
		p.covariance *= keep
		p.transientVariance = keep*keep*p.transientVariance + (1-keep*keep)*stationaryVariance
	}
	p.at = now
}

// observe learns from the logarithm of a measured time over the predicted one, and its variance.
func (p *pace) observe(off, variance float64) {
	off -= p.level + p.transient
	level, transient := p.levelVariance+p.covariance, p.covariance+p.transientVariance
	total := level + transient + max(variance, leastNoise)
	p.misfit += (min(off*off/total, 16) - p.misfit) / 64
	bound := clip * math.Sqrt(total)
	off = min(max(off, -bound), bound) / total
	p.level += level * off
	p.transient += transient * off
	p.levelVariance -= level * level / total
	p.covariance -= level * transient / total
	p.transientVariance -= transient * transient / total
	p.samples++
}

// Pace is a holder's own factor on the times of its [Kind]: how much longer its passes take than those of the median
// holder.
type Pace struct {
	Factor   float64 `json:"factor"`   // used in predictions: exactly 1 unless it is believed
	Believed bool    `json:"believed"` // the interval excludes everything within 10 % of 1
	Measured float64 `json:"measured"` // the estimate before shrinking; 0: there is no evidence
	Low      float64 `json:"low"`      // the 95 % confidence interval of Measured
	High     float64 `json:"high"`
	Samples  int     `json:"samples"` // measurements of this holder
	// Away: one factor does not explain its times, or they are beyond a quarter to four times the median's. Its kind
	// learns nothing from them.
	Away bool `json:"away,omitempty"`
}
