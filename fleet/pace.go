package fleet

import (
	"math"
	"sync/atomic"
)

// pace is how much longer the passes (forward steps) of a holder take than those of its kind, as a logarithm.
//
// The pace is a Kalman filter with two states [Kalman 1960]: the level, which lasts, and the transient, which comes and
// goes with other work on the machine. Only their sum is measured. The transient is an Ornstein-Uhlenbeck process: its
// autocorrelation falls with a time constant. So several measurements within a minute say little more about the level
// than one, and evidence grows with time: measurements over t seconds are worth about 1 + t/(2·transientFor)
// independent measurements [Bayley and Hammersley 1946, the effective number of independent observations].
//
// The kind's mutex guards everything except the atomic.
type pace struct {
	level, transient                             float64
	levelVariance, covariance, transientVariance float64 // the covariance matrix
	at                                           int64   // when the last measurement was taken, Unix nanoseconds; 0: none
	samples                                      int     // the number of measurements
	misfit                                       float64 // running mean of innovation² / its variance; 1 if the model fits
	taught                                       float64 // how much the kind learned from this holder; fades with taughtFor
	away                                         bool    // the kind learns nothing from this holder, see Pace.Away
	current                                      Pace    // the judgement of the last survey

	factor atomic.Uint64 // the bits of the factor that readers use: 1 unless the pace is believed
}

// Constants of the filter.
const (
	// firstLevel is the variance of an unknown level. One standard deviation is then a factor of e (2.7), so this
	// assumption hardly matters: the confidence interval comes from the measurements.
	firstLevel = 1.0
	// levelDrift is by how much the variance of the level grows in a second. What is learned in one hour fades in the
	// next hour.
	levelDrift = 2e-5
	// stationaryVariance is the variance of the transient before any measurement: other work on the machine usually
	// changes the time of a pass by 20 %, and sometimes by 50 %.
	stationaryVariance = 0.04
	// transientFor is the time constant of the transient in seconds: a build, a backup or a batch job lasts minutes.
	transientFor = 60
	// leastNoise is the least variance of a single measurement: the time of a pass varies by at least 2 %.
	leastNoise = 4e-4
	// mostVariance is the variance of the level below which there is evidence of the level.
	mostVariance = 0.25
	// fewSamples is the least number of measurements that are evidence of the level. With fewer measurements, a change of
	// the kind's times could look like a level of this holder.
	fewSamples = 8
	// within is half of a 95 % confidence interval, in standard errors.
	within = 1.96
	// alike is the factor within which machines count as equal. A pace is believed if its confidence interval lies
	// outside 1/alike … alike.
	alike = 1.1
	// farthest is the greatest factor that is believed. A holder that is slower counts as slow by this factor. A holder
	// that seems to be faster than 1/farthest gets factor 1: otherwise a worker that reports untrue lengths of its
	// answers would attract most requests.
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

// observe learns from one measurement. off is the logarithm of the measured time divided by the predicted time, and
// variance is the variance of off.
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
	Factor   float64 `json:"factor"`   // the factor in predictions: exactly 1 unless Believed
	Believed bool    `json:"believed"` // the interval excludes everything within 10 % of 1
	Measured float64 `json:"measured"` // the estimate before shrinking; 0: there is no evidence
	Low      float64 `json:"low"`      // the lower end of the 95 % confidence interval of Measured
	High     float64 `json:"high"`     // the upper end of this interval
	Samples  int     `json:"samples"`  // the number of measurements of this holder
	// Away says that the holder's times do not follow those of its kind: one factor does not explain them, or the
	// factor is below 1/4 or above 4. The kind learns nothing from them.
	Away bool `json:"away,omitempty"`
}
