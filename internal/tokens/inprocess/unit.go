package inprocess

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/tokens"
)

// unitKey identifies a unit: a base model and a kind of engine. The kind counts because each kind renders chats in its
// own way.
type unitKey struct {
	model string
	kind  tokens.Kind
}

func (k unitKey) compare(other unitKey) int {
	return cmp.Or(strings.Compare(k.model, other.model), cmp.Compare(k.kind, other.kind))
}

// unit is a base model that the fleet serves with one kind of engine. It has the model's workers, the places of the
// model's files, and the results of comparing the ids from these files with the workers' ids. An origin is the folder
// or name from which a worker says that it loaded the model.
type unit struct {
	key      unitKey
	members  []*member
	origins  []string  // origins that the members report
	changes  int       // number of changes of members and origins so far
	job      *job      // job under way; nil: none
	download *job      // download under way, in addition to job; nil: none
	loaded   time.Time // when the model's files were last loaded

	round    *round // look under way; nil: none
	looked   bool
	lookedAt time.Time
	places   []place            // places that have files
	named    map[place][]string // place → origins for which the place was found
	why      []string           // reasons why some origins have no place
	rejected map[place]string   // place that is not used → reason
	slow     string             // reason why a read was given up; empty if no read was given up
	verdicts map[verdictKey]*verdict

	last   lastUse
	logged string
}

// round is one search of the folders for all origins of a unit.
type round struct {
	changes int      // value of unit.changes when the round began
	left    []string // origins that remain to be looked at
	found   map[string][]place
	named   []place  // places that the operator named; they come before all others
	why     []string // reasons why some origins have no place
	hung    bool     // the search for an origin was given up
}

// lastUse has the place and the workers of a unit at the last call of renew.
type lastUse struct {
	place   place
	members []identity
}

// member is a worker that serves the base model of a unit.
type member struct {
	identity
	worker  tokens.Worker
	origins []string
	ready   bool
	gives   bool   // its probe found that it answers questions for token ids
	engine  string // the engine's name, also of an engine that worker.Kind does not tell from vLLM
	holders []fleet.Holder
}

// identity identifies one process of a worker. When the process, the version or the origins change, the worker gets all
// probes again.
type identity struct {
	url         string
	incarnation uint64
	group       group
}

// group is a set of workers that should make the same ids: their engines have one version and the same origins.
type group struct{ version, origins string }

// memberOf returns w as a member, or nil if its model is not known.
func (f *Finder) memberOf(w *fleet.Worker) *member {
	model := w.Facts.BaseModel()
	if model == "" {
		return nil
	}
	m := &member{worker: tokens.WorkerOf(w, model), ready: w.Ready, holders: w.Holders,
		gives: w.Facts.CanTokenize || w.Facts.CanRender, engine: w.Facts.Engine.String()}
	m.worker.URL = f.Bare(m.worker.URL)
	m.origins = append(slices.Clone(w.Facts.Origins), m.worker.Root, f.Bare(model))
	m.identity = identity{m.worker.URL, w.Incarnation, group{w.Facts.Version, strings.Join(m.origins, "\x00")}}
	return m
}

// verdictKey is a worker's process, and the place of the files whose ids were compared with the worker's ids.
type verdictKey struct {
	identity
	place place
}

// finding is the result of a comparison.
type finding uint8

const (
	agrees  finding = iota
	differs         // the ids differ in at least one probe
	silent          // the worker gives no ids
	failed          // the worker did not answer in time, or answered with an error
)

type verdict struct {
	finding finding
	prompts int       // number of compared prompts, including prompts that both sides refused
	chats   int       // number of chats among these prompts
	why     string    // reason, if the worker does not agree
	again   time.Time // if the worker does not agree: time when it is asked again
	tries   int       // number of failures in a row
}

// settled reports whether v is still valid at time now.
func (v *verdict) settled(now time.Time) bool {
	return v != nil && (v.finding == agrees || now.Before(v.again))
}

// follow updates the unit's members. It forgets the verdicts of processes that have ended.
func (u *unit) follow(members []*member) {
	var origins []string
	present, before := map[identity]bool{}, map[identity]bool{}
	for _, m := range u.members {
		before[m.identity] = true
	}
	fresh := false
	for _, m := range members {
		present[m.identity] = true
		fresh = fresh || !before[m.identity]
		for _, origin := range m.origins {
			if origin != "" && !slices.Contains(origins, origin) && len(origins) < maxOrigins {
				origins = append(origins, origin)
			}
		}
	}
	for key := range u.verdicts {
		if !present[key.identity] {
			delete(u.verdicts, key)
		}
	}
	u.members = members
	if fresh || !slices.Equal(origins, u.origins) {
		u.origins, u.looked = origins, false // the new process may have loaded other files
		u.changes++
	}
}

// naming returns the URLs of the members that report this origin.
func (u *unit) naming(origin string) (urls []string) {
	for _, m := range u.members {
		if slices.Contains(m.origins, origin) {
			urls = append(urls, m.url)
		}
	}
	return urls
}

// missing reports whether all places were searched, and no place has files that can be the engine's files.
func (u *unit) missing(now time.Time) bool {
	_, ok := u.current(now)
	return u.looked && !ok && u.ready()
}

// maxOrigins bounds the number of origins that are tried for one model.
const maxOrigins = 16

// ready reports whether the model has a ready worker.
func (u *unit) ready() bool {
	return slices.ContainsFunc(u.members, func(m *member) bool { return m.ready })
}

func (u *unit) verdict(p place, m *member) *verdict { return u.verdicts[verdictKey{m.identity, p}] }

// current returns the first place that was not rejected and from whose ids no ready worker's ids differ.
func (u *unit) current(now time.Time) (p place, ok bool) {
	for _, p := range u.places {
		if u.rejected[p] == "" && u.standing(p, now) != standsDiffering {
			return p, true
		}
	}
	return place{}, false
}

// standing says whether the files of a place may be used, as far as the ready workers' verdicts show.
type standing uint8

const (
	standsOpen      standing = iota // the result of at least one group is still open, or no worker is ready
	standsAgreed                    // at least one group agreed, no worker differs, and no group is open
	standsDiffering                 // a worker differs
	standsSilent                    // no group agreed, and no group is open
)

// standing combines the ready workers' verdicts. A group agrees if one of its workers agrees. A group that does not
// agree is open while one of its workers has no final verdict. The verdict is final if the worker gives no ids, or has
// failed failedOften times in a row.
func (u *unit) standing(p place, now time.Time) standing {
	type seen struct{ agreed, open bool }
	groups := map[group]*seen{}
	agreed, open := false, false
	for _, m := range u.members {
		if !m.ready {
			continue
		}
		g := groups[m.group]
		if g == nil {
			g = &seen{}
			groups[m.group] = g
		}
		switch v := u.verdict(p, m); {
		case v == nil, v.finding == failed && v.tries < failedOften, v.finding == differs && !v.settled(now):
			g.open = true
		case v.finding == differs:
			return standsDiffering
		case v.finding == agrees:
			g.agreed, agreed = true, true
		}
	}
	for _, g := range groups {
		open = open || !g.agreed && g.open
	}
	switch {
	case open || len(groups) == 0:
		return standsOpen
	case agreed:
		return standsAgreed
	}
	return standsSilent
}

// spoken returns the groups in which at least one ready worker agreed.
func (u *unit) spoken(p place) map[group]bool {
	groups := map[group]bool{}
	for _, m := range u.members {
		if v := u.verdict(p, m); m.ready && v != nil && v.finding == agrees {
			groups[m.group] = true
		}
	}
	return groups
}

// pauses reports whether the standing of p is standsSilent and no worker can be asked now.
func (u *unit) pauses(p place, s *fleet.Snapshot, now time.Time) bool {
	return u.standing(p, now) == standsSilent && u.next(p, s, now) == nil
}

// next returns the worker to ask now: the least busy worker of the groups in which no worker agreed. If there is no
// such worker, next returns the least busy of the other workers. It skips workers that agreed and workers in a pause.
func (u *unit) next(p place, s *fleet.Snapshot, now time.Time) *member {
	spoken := u.spoken(p)
	var best *member
	better := func(a, b *member) bool {
		if spoken[a.group] != spoken[b.group] {
			return !spoken[a.group]
		}
		return requestsOn(s, a.holders, now) < requestsOn(s, b.holders, now)
	}
	for _, m := range u.members {
		if !m.ready {
			continue
		}
		if v := u.verdict(p, m); v != nil && (v.finding == agrees || now.Before(v.again)) {
			continue
		}
		if best == nil || better(m, best) {
			best = m
		}
	}
	return best
}

// requestsOn returns the number of requests under way on these holders.
func requestsOn(s *fleet.Snapshot, holders []fleet.Holder, now time.Time) int64 {
	n := int64(0)
	for _, h := range holders {
		l := s.LoadAt(h, now.UnixNano())
		n += l.Requests
	}
	return n
}

// wait returns how long Run may wait for an event before it looks at the unit again.
func (u *unit) wait(now time.Time) time.Duration {
	if u.job != nil {
		if u.job.reads() {
			return max(u.job.deadline.Sub(now), 0) + time.Millisecond
		}
		return lookEvery
	}
	wait := lookEvery
	if u.looked {
		wait = max(u.lookedAt.Add(lookEvery).Sub(now), time.Second)
	}
	for _, v := range u.verdicts {
		if v.finding != agrees {
			wait = min(wait, max(v.again.Sub(now), time.Second))
		}
	}
	return wait
}
