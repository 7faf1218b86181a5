package inprocess

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/tokens"
)

// unitKey names a unit: a base model as engines of one kind serve it, as each kind renders chats in its own way.
type unitKey struct {
	model string
	kind  tokens.Kind
}

func (k unitKey) compare(other unitKey) int {
	return cmp.Or(strings.Compare(k.model, other.model), cmp.Compare(k.kind, other.kind))
}

// unit is a model that is followed: who serves it, where its files may lie, and how they compared.
type unit struct {
	key      unitKey
	members  []*member
	origins  []string  // where the members say they loaded it from
	changes  int       // of members and origins
	job      *job      // under way; nil is none
	download *job      // a download, beside any other job; nil is none
	loaded   time.Time // when its files were last loaded

	round    *round // a look under way; nil is none
	looked   bool
	lookedAt time.Time
	places   []place            // where files were found
	named    map[place][]string // the origins that led there
	why      []string           // why origins are no places
	rejected map[place]string
	slow     string // a read was given up: why
	verdicts map[verdictKey]*verdict

	last   lastUse
	logged string
}

// round is a look at the origins of a unit.
type round struct {
	changes int      // see unit, when it began
	left    []string // to look at
	found   map[string][]place
	named   []place  // that the operator named: they come first
	why     []string // why origins are no places
	hung    bool     // a look was given up
}

// lastUse is what a unit's ids were made from when they were last used.
type lastUse struct {
	place   place
	members []identity
}

// member is a worker that serves a unit's model.
type member struct {
	identity
	worker  tokens.Worker
	origins []string
	ready   bool
	holders []fleet.Holder
}

// identity is one process of a worker. Another process, another version or another origin is verified anew.
type identity struct {
	url         string
	incarnation uint64
	group       group
}

// group are workers that should make the same ids: engines of one version that loaded the model from the same place.
type group struct{ version, origins string }

// memberOf returns nil for a worker that serves no model that is known.
func memberOf(w *fleet.Worker) *member {
	model := w.Facts.BaseModel()
	if model == "" {
		return nil
	}
	m := &member{worker: tokens.Worker{URL: w.URL, Version: w.Facts.Version}, ready: w.Ready, holders: w.Holders}
	if w.Facts.Engine == fleet.EngineSGLang {
		m.worker.Kind = tokens.SGLang
	}
	m.origins = slices.Clone(w.Facts.Origins)
	for i := range w.Facts.Models {
		if x := &w.Facts.Models[i]; x.ID == model {
			m.worker.Root, m.worker.MaxModelLen = x.Root, x.MaxModelLen
			m.origins = append(m.origins, x.Root, x.ID)
			break
		}
	}
	m.identity = identity{w.URL, w.Incarnation, group{w.Facts.Version, strings.Join(m.origins, "\x00")}}
	return m
}

// verdictKey is a process whose ids were compared with those of files.
type verdictKey struct {
	identity
	place place
}

// finding is how ids compared.
type finding uint8

const (
	agrees  finding = iota
	differs         // in one probe at least
	silent          // the worker lets nobody ask for ids
	failed          // it did not answer, or not in time
)

type verdict struct {
	finding finding
	prompts int       // that were compared, or were refused by both sides
	chats   int       // of them, chats
	why     string    // it does not agree
	again   time.Time // when it is asked again; agreement holds
	tries   int       // failures in a row
}

// settled reports whether v still counts at now.
func (v *verdict) settled(now time.Time) bool {
	return v != nil && (v.finding == agrees || now.Before(v.again))
}

// follow takes over who serves the model now. What was found out about processes that are gone is forgotten.
func (u *unit) follow(members []*member) {
	var origins []string
	present := map[identity]bool{}
	fresh := false
	for _, m := range members {
		present[m.identity] = true
		fresh = fresh || !slices.ContainsFunc(u.members, func(old *member) bool { return old.identity == m.identity })
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
		u.origins, u.looked = origins, false // a new process may have loaded other files
		u.changes++
	}
}

// naming returns the URLs of the members that say they loaded the model from origin.
func (u *unit) naming(origin string) (urls []string) {
	for _, m := range u.members {
		if slices.Contains(m.origins, origin) {
			urls = append(urls, m.url)
		}
	}
	return urls
}

// missing reports whether all places were looked at, and none has files that are the engine's.
func (u *unit) missing(now time.Time) bool {
	_, ok := u.current(now)
	return u.looked && !ok && u.ready()
}

// maxOrigins bounds the folders and names that are tried for one model.
const maxOrigins = 16

// ready reports whether the model has a worker that gets requests.
func (u *unit) ready() bool {
	return slices.ContainsFunc(u.members, func(m *member) bool { return m.ready })
}

func (u *unit) verdict(p place, m *member) *verdict { return u.verdicts[verdictKey{m.identity, p}] }

// current returns the first place whose files no ready worker is known to differ from.
func (u *unit) current(now time.Time) (p place, ok bool) {
	for _, p := range u.places {
		if u.rejected[p] == "" && u.standing(p, now) != standsDiffering {
			return p, true
		}
	}
	return place{}, false
}

// standing is what the ready workers say of files.
type standing uint8

const (
	standsOpen      standing = iota // not all groups are verified
	standsAgreed                    // a worker of each group agreed, and none that was asked differs
	standsDiffering                 // one differs
	standsSilent                    // no group agreed, and none is waited for
)

// standing judges files by the ready workers. One worker of each group has to agree: where engines are asked for ids,
// one engine's answer counts for all workers of a model, too. A group whose workers give no ids, or failed failedOften
// times in a row, is ignored if another group agreed.
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

// spoken returns the groups of which a ready worker agreed.
func (u *unit) spoken(p place) map[group]bool {
	groups := map[group]bool{}
	for _, m := range u.members {
		if v := u.verdict(p, m); m.ready && v != nil && v.finding == agrees {
			groups[m.group] = true
		}
	}
	return groups
}

// pauses reports whether no group agreed, none is waited for, and no worker is to be asked now.
func (u *unit) pauses(p place, s *fleet.Snapshot, now time.Time) bool {
	return u.standing(p, now) == standsSilent && u.next(p, s, now) == nil
}

// next returns the worker that is to be asked now: one of a group that nobody spoke for yet, and of those the least
// busy.
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

// requestsOn is how many requests a worker has.
func requestsOn(s *fleet.Snapshot, holders []fleet.Holder, now time.Time) int64 {
	n := int64(0)
	for _, h := range holders {
		l := s.LoadAt(h, now.UnixNano())
		n += l.Requests
	}
	return n
}

// wait is how long nothing will come to do for the unit by itself.
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
