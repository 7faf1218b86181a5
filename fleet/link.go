package fleet

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Link says how long a transfer of KV blocks from one worker to another takes: Base + Token·tokens milliseconds.
type Link struct {
	Base    float64 `json:"base_ms"`  // for each transfer: the handshake, and the steps of both engines that notice it
	Token   float64 `json:"token_ms"` // for each token of the prompt whose blocks are sent
	Samples int     `json:"samples"`  // transfers of this pair that were measured; 0: the times are assumed
	// AloneUntil is the time before which the pair gets no transfers because several failed in a row, Unix nanoseconds;
	// 0 is none.
	AloneUntil int64 `json:"-"`
}

// Time returns how long a transfer of the blocks of this number of tokens takes, in milliseconds.
func (l *Link) Time(tokens int) float64 {
	if tokens <= 0 {
		return 0
	}
	return l.Base + l.Token*float64(tokens)
}

// Rested reports whether the pair may get a transfer at now.
func (l *Link) Rested(now int64) bool { return now >= l.AloneUntil }

// These are assumptions about a link before its first transfer was measured.
const (
	// linkBase is the assumed Base in milliseconds: vLLM's scheduler looks for received blocks once a step, and a step
	// of a large model takes some 10 to 30 ms.
	linkBase = 10
	// linkBytes is the assumed speed in bytes per millisecond: a quarter of the 50 GB/s of one 400 Gbit/s link, because
	// published measurements of NIXL between machines reach a part of the link only.
	linkBytes = 12.5e6
	// linkTokenBytes is the assumed size of the KV of a token if the worker does not report it: that of Llama-3.1-8B.
	linkTokenBytes = 131072
)

// After linkFailures failed transfers in a row, a pair of workers gets none for the time linkRest. Each further failure
// doubles the time, up to linkLongestRest.
const (
	linkFailures    = 3
	linkRest        = 30 * time.Second
	linkLongestRest = 10 * time.Minute
)

// links holds the links of a fleet. Readers take no lock, since each decision reads a link for each of its candidates.
type links struct {
	mu    sync.Mutex                              // held by writers
	pairs atomic.Pointer[map[WorkerID]*linksFrom] // by the worker that sends; the map is replaced when it changes
	// near has a fit over the transfers of all pairs at the same distance. A pair without measurements has these times.
	near [distances]atomic.Pointer[fit]
}

// linksFrom has the links from one worker by the worker that receives. The map is replaced when it changes.
type linksFrom struct {
	to atomic.Pointer[map[WorkerID]*atomic.Pointer[linkState]]
}

func newLinks() *links {
	l := &links{}
	l.pairs.Store(&map[WorkerID]*linksFrom{})
	for d := range l.near {
		l.near[d].Store(&fit{})
	}
	return l
}

// find returns what is known about a pair, nil if nothing is.
func (l *links) find(from, to WorkerID) *linkState {
	if out := (*l.pairs.Load())[from]; out != nil {
		if s := (*out.to.Load())[to]; s != nil {
			return s.Load()
		}
	}
	return nil
}

// set replaces what is known about a pair. l.mu is held.
func (l *links) set(from, to WorkerID, s *linkState) {
	out := (*l.pairs.Load())[from]
	if out == nil {
		out = &linksFrom{}
		out.to.Store(&map[WorkerID]*atomic.Pointer[linkState]{})
		more := maps.Clone(*l.pairs.Load())
		more[from] = out
		l.pairs.Store(&more)
	}
	if known := (*out.to.Load())[to]; known != nil {
		known.Store(s)
		return
	}
	more := maps.Clone(*out.to.Load())
	more[to] = new(atomic.Pointer[linkState])
	more[to].Store(s)
	out.to.Store(&more)
}

// linkState is what is known about a pair. It is immutable.
type linkState struct {
	fit      fit
	failures int   // failed transfers in a row
	until    int64 // see Link.AloneUntil
}

// distance says how far two workers are from each other, by their labels.
type distance uint8

const (
	sameDomain distance = iota // the same value of the label nvlink
	sameNode
	sameZone
	apart
	distances
)

// The labels of workers that say where they are. Workers with the same value are near each other: transfers between
// them are faster, and the locality filter prefers workers near the router.
const (
	LabelNVLink = "nvlink" // the NVLink domain; only for transfers
	LabelNode   = "node"
	LabelZone   = "zone"
)

func distanceOf(a, b *Worker) distance {
	if a == nil || b == nil {
		return apart
	}
	for d, label := range [...]string{sameDomain: LabelNVLink, sameNode: LabelNode, sameZone: LabelZone} {
		if v := a.Facts.Labels[label]; v != "" && v == b.Facts.Labels[label] {
			return distance(d)
		}
	}
	return apart
}

// fit is a linear fit of times against numbers of tokens, in which old measurements fade. The zero value knows nothing.
type fit struct {
	n               int     // the number of measurements
	seen            float64 // the same, but old measurements count less: see linkFade
	w, x, y, xx, xy float64 // weighted sums: of 1, tokens, milliseconds, tokens², tokens·milliseconds
}

// linkFade is the weight of the past at each new measurement: about the last fifty count.
const linkFade = 0.98

// linkPrior is the weight of the assumed times, in measurements. With less, the first measurement would decide alone,
// and it often has the handshake of two engines in it.
const linkPrior = 2

// linkAbove is the weight of a measurement above the line. A measurement below the line has the weight 1, so the line
// is near the fastest transfers. A slower measurement often includes a wait before the transfer: the decode worker
// waits for memory that running requests hold, and for the end of its present pass.
const linkAbove = 0.1

// add adds a measurement. assumed are the times that are assumed before the first one.
func (f *fit) add(tokens int, ms float64, assumed Link) {
	x, weight := float64(tokens), 1.0
	if line := f.link(assumed); ms > line.Time(tokens) {
		weight = linkAbove
	}
	f.n++
	f.seen = f.seen*linkFade + 1
	f.w, f.x, f.y = f.w*linkFade+weight, f.x*linkFade+weight*x, f.y*linkFade+weight*ms
	f.xx, f.xy = f.xx*linkFade+weight*x*x, f.xy*linkFade+weight*x*ms
}

// link returns the fitted times. assumed counts as linkPrior measurements: half of them of 0 tokens, and half of twice
// as many tokens as the mean transfer had.
func (f *fit) link(assumed Link) Link {
	if f.n == 0 {
		return assumed
	}
	mean := max(f.x/f.w, 1)
	w, x, y, xx, xy := f.w, f.x, f.y, f.xx, f.xy
	for _, at := range [...]float64{0, 2 * mean} {
		ms := assumed.Base + assumed.Token*at
		weight := linkPrior / 2 * f.w / f.seen // linkPrior measurements of mean weight
		w, x, y, xx, xy = w+weight, x+weight*at, y+weight*ms, xx+weight*at*at, xy+weight*at*ms
	}
	det := w*xx - x*x
	if det <= 0 {
		return assumed
	}
	slope := (w*xy - x*y) / det
	base := (y - slope*x) / w
	switch {
	case slope < 0:
		slope, base = 0, y/w
	case base < 0:
		base, slope = 0, xy/xx
	}
	return Link{Base: base, Token: slope, Samples: f.n}
}

// assumedLink returns the times that are assumed for a transfer from worker a.
func assumedLink(a *Worker) Link {
	bytes := linkTokenBytes
	if a != nil && a.Facts.Transfer.TokenBytes > 0 {
		bytes = a.Facts.Transfer.TokenBytes
	}
	return Link{Base: linkBase, Token: float64(bytes) / linkBytes}
}

// Link returns how long KV blocks take from worker from to worker to, as learned so far. A pair without measurements
// has the times of pairs at the same distance, by the labels nvlink, node and zone. If there are none, the times are
// assumed. Link takes no lock.
func (s *Snapshot) Link(from, to *Worker) Link {
	l := s.links
	out := assumedLink(from)
	out = l.near[distanceOf(from, to)].Load().link(out)
	out.Samples = 0
	if p := l.find(from.ID, to.ID); p != nil {
		if p.fit.n > 0 {
			out = p.fit.link(out)
		}
		out.AloneUntil = p.until
	}
	return out
}

// PairLink is what the fleet learned about the link of a pair of workers.
type PairLink struct {
	From, To *Worker
	Link
	Failures int // failed transfers since the last one that did not fail
}

// Links returns the pairs of present workers whose transfers were measured or failed, by the order of From and To.
func (s *Snapshot) Links() []PairLink {
	var list []PairLink
	for id, out := range *s.links.pairs.Load() {
		from := s.ByID(id)
		for id, p := range *out.to.Load() {
			if to := s.ByID(id); from != nil && to != nil {
				list = append(list, PairLink{From: from, To: to, Failures: p.Load().failures})
			}
		}
	}
	for i := range list {
		list[i].Link = s.Link(list[i].From, list[i].To)
	}
	slices.SortFunc(list, func(a, b PairLink) int {
		return cmp.Or(cmp.Compare(a.From.ID, b.From.ID), cmp.Compare(a.To.ID, b.To.ID))
	})
	return list
}

// Transferred notes that a transfer succeeded: the blocks of this number of tokens came from worker from to worker to
// in the time took. The pair may get transfers again. If tokens is not positive, the time is not known, and nothing
// else is learned.
func (f *Fleet) Transferred(from, to *Worker, tokens int, took time.Duration) {
	l := f.links
	l.mu.Lock()
	defer l.mu.Unlock()
	p, ok := f.pair(from, to)
	if !ok {
		return
	}
	p.failures, p.until = 0, 0
	if tokens > 0 && took >= 0 {
		ms := float64(took) / float64(time.Millisecond)
		assumed := assumedLink(from)
		near := *l.near[distanceOf(from, to)].Load()
		p.fit.add(tokens, ms, near.link(assumed))
		near.add(tokens, ms, assumed)
		l.near[distanceOf(from, to)].Store(&near)
	}
	l.set(from.ID, to.ID, &p)
}

// TransferFailed notes that a transfer failed. After three failures in a row the pair gets no transfers for the time
// alone; before that, alone is 0.
func (f *Fleet) TransferFailed(from, to *Worker, now int64) (alone time.Duration) {
	l := f.links
	l.mu.Lock()
	defer l.mu.Unlock()
	p, ok := f.pair(from, to)
	if !ok {
		return 0
	}
	if p.failures++; p.failures >= linkFailures {
		alone = linkLongestRest
		if doubled := p.failures - linkFailures; doubled < 5 {
			alone = min(alone, linkRest<<doubled)
		}
		p.until = now + int64(alone)
	}
	l.set(from.ID, to.ID, &p)
	return alone
}

// pair returns a copy of the state of a pair. ok is false if one of the workers has left: drop would not be called for
// it again. f.links.mu is held.
func (f *Fleet) pair(from, to *Worker) (p linkState, ok bool) {
	if s := f.Snapshot(); s.ByID(from.ID) == nil || s.ByID(to.ID) == nil {
		return p, false
	}
	if known := f.links.find(from.ID, to.ID); known != nil {
		p = *known
	}
	return p, true
}

// drop forgets the pairs of a worker that left.
func (l *links) drop(id WorkerID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := maps.Clone(*l.pairs.Load())
	delete(left, id)
	for _, out := range left {
		if to := *out.to.Load(); to[id] != nil {
			to = maps.Clone(to)
			delete(to, id)
			out.to.Store(&to)
		}
	}
	l.pairs.Store(&left)
}
