package fleet

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
)

// LabelHardware is the name of a label of workers. Workers of a model with the same value of this label are of one
// kind, whatever facts probes find.
const LabelHardware = "hardware"

// kindKey is what the workers of a kind have in common. If hardware is set, only model and hardware are used: the
// operator's label replaces the facts that probes find.
type kindKey struct {
	model, hardware  string
	engine           Engine
	version          string
	blockSize, ranks int
}

func (f *Facts) kind() kindKey {
	if hardware := f.Labels[LabelHardware]; hardware != "" {
		return kindKey{model: f.BaseModel(), hardware: hardware}
	}
	return kindKey{model: f.BaseModel(), engine: f.Engine, version: f.Version, blockSize: f.BlockSize, ranks: f.Ranks}
}

// String returns a name of the kind for people.
func (k kindKey) String() string {
	if k.hardware != "" {
		return k.model + " on " + k.hardware
	}
	parts := []string{k.model + " on " + k.engine.String()}
	if k.version != "" {
		parts[0] += " " + k.version
	}
	if k.blockSize > 0 {
		parts = append(parts, fmt.Sprintf("blocks of %d", k.blockSize))
	}
	if k.ranks > 1 {
		parts = append(parts, fmt.Sprintf("%d ranks", k.ranks))
	}
	return strings.Join(parts, ", ")
}

// kind holds what holders of one kind share: their times, and the statistics by which the pace of each holder is
// judged. A pace is how much longer one holder's passes take than those of the median holder. Locks are taken in this
// order: the fleet's mutex, a ledger's mutex, a kind's mutex.
type kind struct {
	key   kindKey
	times published // the learned times, for readers

	mu       sync.Mutex // guards the fields below
	model    estimator
	members  []*pace
	scratch  []float64
	surveyed int64   // when survey ran last, Unix nanoseconds
	evident  int     // the number of members with evidence (pace.evident)
	median   float64 // the median of the levels of the members with evidence
	between  float64 // the variance between these levels that chance does not explain
	misfit   float64 // the median of the misfits of the members with evidence, at least 1
	taught   float64 // the sum of all members' pace.taught
	teachers int     // the number of members whose pace.taught is not 0
}

// Constants of a kind.
const (
	// surveyEvery is how often paces are compared.
	surveyEvery = 1e9 // nanoseconds
	// firstBetween is the assumed variance between the levels of machines of one kind: a standard deviation of 0.3,
	// because machines that are not equal usually differ by a third. This assumption has the weight of firstMachines
	// measured machines.
	firstBetween, firstMachines = 0.09, 2
	// taughtFor is the time constant in seconds with which pace.taught decays.
	taughtFor = 600
	// fewTaught is how many measurements a kind takes with full weight. After that, the function weight bounds the share
	// of each member.
	fewTaught = 8
	// settledAfter decides when a new kind begins to measure paces: after settledAfter measurements for each holder that
	// gave measurements, where at most eight holders count.
	settledAfter = 16
	// misfits is a multiple of the median misfit. If a holder's pace.misfit is larger than this multiple, the holder's
	// times do not differ from the kind's times by one factor.
	misfits = 4
)

func newKind(key kindKey, assumed Timing) *kind {
	k := &kind{key: key, model: newEstimator(assumed), misfit: 1}
	c := k.model.coefficients()
	k.times.store(&c, 0)
	return k
}

// join adds a holder with an unknown pace.
func (k *kind) join(p *pace) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p.start()
	k.members = append(k.members, p)
}

// leave removes a holder. What the kind learned from the holder stays.
func (k *kind) leave(p *pace) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if i := slices.Index(k.members, p); i >= 0 {
		k.members = slices.Delete(k.members, i, i+1)
	}
	p.start()
}

// restart forgets a holder's pace.
func (k *kind) restart(p *pace) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p.start()
}

// empty reports whether the kind has no holders.
func (k *kind) empty() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.members) == 0
}

// learn records one measurement: the holder with the pace p needed `took` milliseconds for the amounts of the terms of
// a Timing (see estimator). expected is the expected error of the measurement, in milliseconds.
func (k *kind) learn(p *pace, amounts *[terms]float64, took, expected float64, now int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	predicted, variance := k.model.predict(amounts, expected)
	if !(predicted > 0) || !(took > 0) || math.IsInf(predicted+variance+took, 0) || math.IsNaN(variance) {
		return
	}
	// The kind learns the times of the median holder, so the measured time is divided by the factor of this holder's
	// level. It is not divided by the holder's transient, the part of the pace that passes: the transient follows the last
	// residual so closely that the error of one measurement would pass to the next.
	own := 1.0
	if k.evident > 1 {
		own = math.Exp(min(max(p.level-k.median, -math.Ln10), math.Ln10))
	}
	if k.model.samples >= settledAfter*min(max(k.teachers, 1), 8) {
		p.elapse(now)
		p.observe(math.Log(took/predicted), variance/(predicted*predicted))
	}
	if w := k.weight(p); w > 0 {
		if p.taught == 0 {
			k.teachers++
		}
		p.taught += w
		k.taught += w
		k.model.observe(amounts, took/own, expected/own, w)
		c := k.model.coefficients()
		k.times.store(&c, k.model.samples)
	}
	if now-k.surveyed >= surveyEvery || now < k.surveyed {
		k.survey(now)
	}
}

// weight returns how much a measurement of p counts for its kind. A teacher is a member whose field taught is not 0.
// The kind learns in equal parts from all teachers. The weight is 1 if p gave at most its equal part of what the kind
// has learned lately. Above this part the weight falls, to 0 at twice the part.
func (k *kind) weight(p *pace) float64 {
	switch {
	case p.away:
		return 0
	case k.taught < fewTaught:
		return 1
	}
	return min(max(2-p.taught/k.taught*float64(k.teachers), 0), 1)
}

// survey compares the holders of the kind, and decides which paces are believed. mu is held.
//
// The level of a holder is compared with the median of the levels with evidence, so that a few outliers do not change
// the judgement of the other holders. A pace is believed if its 95 % confidence interval excludes everything within 10
// % of the median. The logarithm of a believed pace is multiplied by k.between / (k.between + error²) [James and Stein
// 1961]. k.between is estimated by the method of moments [DerSimonian and Laird 1986].
func (k *kind) survey(now int64) {
	forget := math.Exp(-min(max(float64(now-k.surveyed), 0)/1e9/taughtFor, 100))
	k.surveyed = now
	k.taught, k.teachers = 0, 0
	for _, p := range k.members {
		if p.taught *= forget; p.taught < 1 {
			p.taught = 0
			continue
		}
		k.taught += p.taught
		k.teachers++
	}
	k.median, k.evident = k.medianOf(now, func(p *pace) float64 { return p.level })
	k.misfit, _ = k.medianOf(now, func(p *pace) float64 { return p.misfit })
	k.misfit = max(k.misfit, 1)
	k.between = firstBetween * firstMachines
	for _, p := range k.members {
		if p.evident(now) {
			off := p.level - k.median
			k.between += off*off - p.errorAt(now)
		}
	}
	k.between = max(k.between/float64(firstMachines+k.evident), 0)
	for _, p := range k.members {
		p.current = k.judge(p, now)
		p.factor.Store(math.Float64bits(p.current.Factor))
	}
}

// medianOf returns the median of a statistic over the holders with evidence, and the number of these holders.
func (k *kind) medianOf(now int64, of func(*pace) float64) (float64, int) {
	k.scratch = k.scratch[:0]
	for _, p := range k.members {
		if p.evident(now) {
			k.scratch = append(k.scratch, of(p))
		}
	}
	n := len(k.scratch)
	if n == 0 {
		return 0, 0
	}
	slices.Sort(k.scratch)
	return (k.scratch[(n-1)/2] + k.scratch[n/2]) / 2, n
}

// evident reports whether there is evidence of p's level at now.
func (p *pace) evident(now int64) bool {
	return p.samples >= fewSamples && p.varianceAt(now) < mostVariance
}

// errorAt returns the variance of the estimated level. The variance is greater if the measured times scatter more than
// expected [Birge 1932].
func (p *pace) errorAt(now int64) float64 { return p.varianceAt(now) * max(p.misfit, 1) }

// judge compares p with the median of its kind. It returns how much slower or faster p is, with a confidence interval,
// and whether this factor is believed. It sets p.away if the kind must learn nothing from p. mu is held.
func (k *kind) judge(p *pace, now int64) Pace {
	p.away = false
	judged := Pace{Factor: 1, Samples: p.samples}
	if !p.evident(now) {
		return judged
	}
	// p itself contributes to the median: hence the factor 1 − 1/N. The median of two holders is equally far from both.
	off, variance := p.level-k.median, p.errorAt(now)*(1-1/float64(max(k.evident, 2)))
	half := within * math.Sqrt(variance)
	judged.Measured, judged.Low, judged.High = math.Exp(off), math.Exp(off-half), math.Exp(off+half)
	if k.evident < 2 {
		return judged
	}
	// With only two holders with evidence, it is unknown which one is the outlier.
	beyond := math.Abs(off) > math.Log(farthest)
	p.away = k.evident > 2 && (p.misfit > misfits*k.misfit || beyond)
	judged.Away = p.away
	// In two more cases the pace is not believed and the factor stays 1. First: the holder seems to be fast, and its pace
	// is out of range or one factor does not explain its times. A worker that reports false lengths of its answers looks
	// like this. Second: the kind has only two holders with evidence, and their paces are too far apart.
	if (p.away || beyond) && (off < 0 || k.evident == 2) {
		return judged
	}
	if judged.Low > alike || judged.High < 1/alike {
		judged.Believed = true
		judged.Factor = math.Exp(off * k.between / (k.between + variance))
		judged.Factor = min(max(judged.Factor, judged.Low), judged.High)
		judged.Factor = min(max(judged.Factor, 1.0/farthest), farthest)
	}
	return judged
}

// Kind describes the holders whose workers are alike, and how long their passes take.
type Kind struct {
	Name    string  // a name for people
	Holders int     // the number of holders of this kind in the fleet
	Timing  Timing  // the timing of the median holder
	Spread  float64 // the standard deviation of the logarithms of the paces, without the part that chance explains
}

func (k *kind) describe() Kind {
	k.mu.Lock()
	defer k.mu.Unlock()
	return Kind{Name: k.key.String(), Holders: len(k.members), Timing: k.times.load(), Spread: math.Sqrt(k.between)}
}
