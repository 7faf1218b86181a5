package fleet

import (
	"math"
	"sync/atomic"
)

// pace is how much longer a holder's passes take than its kind's, as a logarithm. It is a Kalman filter of two
// states: the level, which lasts, and the transient, which other work on the machine brings and takes away [Kalman
// 1960]. Only their sum is seen. The transient is an Ornstein-Uhlenbeck process: its autocorrelation falls with a
// time constant. So measurements within a minute say the same about the level, and evidence grows with time: t
// seconds of them are worth about 1 + t/(2·transientFor) independent ones [Bayley and Hammersley 1946, the effective
// number of independent observations]. The kind's mutex guards all but the atomic.
type pace struct {
	level, transient                             float64
	levelVariance, covariance, transientVariance float64 // the covariance matrix
	at                                           int64   // of the last measurement, Unix nanoseconds; 0: none
	samples                                      int
	misfit                                       float64 // running mean of innovation²/its variance: 1 where the model fits
	taught                                       float64 // measurements that the kind took, of late
	away                                         bool    // the kind takes none: one factor does not explain them
	current                                      Pace    // of the last survey

	factor atomic.Uint64 // the bits of the factor that readers take: 1 where nothing is believed
}

// Constants of the filter.
const (
	// firstLevel is the variance of a level that nothing is known of: a factor of e either way is one standard
	// deviation, so that the interval is that of the measurements and the assumption does not matter.
	firstLevel = 1.0
	// levelDrift is by how much the level's variance grows in a second: what was learned in an hour fades in one.
	levelDrift = 2e-5
	// stationaryVariance is the transient's variance before any measurement: other work on the machine makes passes
	// take 20 % longer or shorter, half as long again at times.
	stationaryVariance = 0.04
	// transientFor is its time constant in seconds: a build, a backup or a batch job lasts minutes.
	transientFor = 60
	// leastNoise is the variance of a single measurement at the least: engines do not repeat a pass to better than 2 %.
	leastNoise = 4e-4
	// mostVariance is the variance of the level below which there is evidence of it.
	mostVariance = 0.25
	// fewSamples is how many measurements make evidence: before, the kind's times may be as new as the holder's.
	fewSamples = 8
	// within is half of a 95 % confidence interval in standard errors.
	within = 1.96
	// alike is the factor within which machines count as equal: a pace is believed where its interval lies outside.
	alike = 1.1
	// farthest is the greatest factor that is believed. A slower holder counts as this slow. One that seems to be faster
	// than 1/farthest gets factor 1: else a worker that tells untrue lengths of its answers would draw most requests.
	farthest = 4
)

// start forgets all.
func (p *pace) start() {
	p.level, p.transient, p.levelVariance, p.covariance, p.transientVariance = 0, 0, firstLevel, 0, stationaryVariance
	p.at, p.samples, p.misfit, p.taught, p.away, p.current = 0, 0, 1, 0, false, Pace{Factor: 1}
	p.factor.Store(math.Float64bits(1))
}

// believed returns the factor that readers take.
func (p *pace) believed() float64 { return math.Float64frombits(p.factor.Load()) }

// varianceAt returns the level's variance at now.
func (p *pace) varianceAt(now int64) float64 {
	return min(p.levelVariance+levelDrift*max(float64(now-p.at), 0)/1e9, firstLevel)
}

// elapse lets time pass until now. A clock that was set back lets none pass.
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

// observe learns from the logarithm of how much longer something took than the kind's times say, with its variance.
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
	Factor   float64 `json:"factor"`   // that predictions take: exactly 1 unless it is believed
	Believed bool    `json:"believed"` // the interval excludes all that is within 10 % of 1
	Measured float64 `json:"measured"` // the estimate without belief and shrinking; 0: there is no evidence
	Low      float64 `json:"low"`      // the 95 % confidence interval of Measured
	High     float64 `json:"high"`
	Samples  int     `json:"samples"` // measurements of this holder
	// Away: one factor does not explain its times, or they are beyond a quarter to four times the median's. They teach
	// its kind nothing.
	Away bool `json:"away,omitempty"`
}
