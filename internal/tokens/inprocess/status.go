package inprocess

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/tokens"
)

// Source is the origin of a model's token ids.
type Source string

// These are the sources. Their values are shown to operators and are labels of a metric.
const (
	FromGiven  Source = "given"  // the router makes the ids, from files that the operator named
	FromFiles  Source = "files"  // the router makes the ids, from files that it found
	FromEngine Source = "engine" // the engine is asked for the ids
	Searching  Source = "search" // the engine is asked for the ids, while files are looked for and compared
)

// Sources are all sources.
var Sources = []Source{FromGiven, FromFiles, FromEngine, Searching}

// Status says from where a model's ids come, and why.
type Status struct {
	Model   string
	Engine  string // vllm or sglang
	Source  Source
	Folder  string // folder of the files; empty if the ids come from the engine
	Prompts int    // number of probes in which the files were compared with one worker; 0 for files that the operator named
	Why     string // reason why the ids come from the engine
	Advice  string // what the operator can do so that the router makes the ids
}

// Statuses returns from where the ids of each model come now, sorted by model name.
func (f *Finder) Statuses() []Status {
	all := slices.Clone(*f.statuses.Load())
	for i := range all {
		f.distrust(&all[i])
	}
	return all
}

// distrust changes s to FromEngine if the model's ids are distrusted: the ids that the router made for a real prompt
// differed from the engine's ids.
func (f *Finder) distrust(s *Status) {
	if s.Source != FromGiven && s.Source != FromFiles {
		return
	}
	c := f.Asker.Compared(s.Model)
	if !c.Distrusted {
		return
	}
	s.Why = fmt.Sprintf("ids made from %s differed from those of %s in %d of the last %d prompts", s.Folder,
		cmp.Or(c.Worker, "the engine"), c.Differed, c.Prompts)
	s.Advice = tokens.DiffersAdvice(s.Model)
	s.Source, s.Folder, s.Prompts = FromEngine, "", 0
}

// publish makes the new state visible to Find and Statuses, and logs changes.
func (f *Finder) publish(now time.Time) {
	inUse, statuses := map[unitKey]*use{}, make([]Status, 0, len(f.units))
	for key, u := range f.units {
		s := f.status(u, now)
		statuses = append(statuses, s)
		if s.Source == FromFiles {
			p, _ := u.current(now)
			inUse[key] = &use{f.held[p], p.dir, u.agreed(p)}
			f.renew(u, p)
		}
		f.tell(u, &s)
	}
	slices.SortFunc(statuses, func(a, b Status) int {
		return strings.Compare(a.Model+"\x00"+a.Engine, b.Model+"\x00"+b.Engine)
	})
	f.inUse.Store(&inUse)
	f.statuses.Store(&statuses)
}

// agreed returns the URLs of the workers that agreed with the files at p.
func (u *unit) agreed(p place) map[string]bool {
	all := map[string]bool{}
	for _, m := range u.members {
		if v := u.verdict(p, m); v != nil && v.finding == agrees {
			all[m.url] = true
		}
	}
	return all
}

// renew forgets earlier comparisons of the model's ids if the files have changed, or if all workers are new.
func (f *Finder) renew(u *unit, p place) {
	var members []identity
	same := false
	for _, m := range u.members {
		members = append(members, m.identity)
		same = same || u.last.place == p && slices.Contains(u.last.members, m.identity)
	}
	if !same {
		f.Asker.Renew(u.key.model)
	}
	u.last = lastUse{p, members}
}

// status returns the source of the unit's ids at time now.
func (f *Finder) status(u *unit, now time.Time) Status {
	s := Status{Model: u.key.model, Engine: "vllm", Source: FromEngine}
	if u.key.kind == tokens.SGLang {
		s.Engine = "sglang"
	}
	p, ok := u.current(now)
	name := fmt.Sprintf("--model-path %s=DIR", u.key.model)
	switch {
	case f.given(u.key.model) != nil:
		s.Source, s.Folder = FromGiven, f.Given.from[f.given(u.key.model)]
	case f.Off && f.Given.nameless != nil:
		s.Why = fmt.Sprintf("tokens.discover is off, and %s was given without a model's name while the workers serve "+
			"several models", f.nameless.dir)
		s.Advice = "name the model with its folder: " + name
	case f.Off:
		s.Why, s.Advice = "tokens.discover is off", "switch it on (tokens: {discover: true}), or name the model's folder: "+
			name
	case !u.ready():
		s.Source, s.Why = Searching, "no worker is ready"
	case u.slow != "" && !ok:
		s.Why, s.Advice = u.slow, "is its disk reachable? A copy on another: "+name
	case !u.looked:
		s.Source, s.Why = Searching, "its files are looked for"
	case !ok && len(u.places) == 0:
		s.Why = strings.Join(append(slices.Clone(u.why), f.notFetched(u)...), "; ")
		s.Advice = "copy the model's tokenizer and chat template here and name their folder: " + name
		if slices.ContainsFunc(u.origins, hubNamed) && f.Hub == nil {
			s.Advice += ", or let them be downloaded: --allow-hub"
		}
	case !ok:
		s.Why = u.refusals(now)
		s.Advice = tokens.DiffersAdvice(u.key.model)
	// This case comes before the cases that look at f.held, because the files may have been freed and are not loaded
	// again.
	case u.standing(p, now) == standsSilent:
		f.compared(&s, u, p, now)
	case f.held[p] == nil && u.job == nil && len(f.held) >= maxHeld:
		s.Why, s.Advice = fmt.Sprintf("the files of %d other models are held", maxHeld), "name the model's folder: "+name
	case f.held[p] == nil:
		s.Source, s.Why = Searching, "its files are being loaded"
	default:
		f.compared(&s, u, p, now)
	}
	return s
}

// notFetched returns the failed downloads for the unit. Each entry has the reason.
func (f *Finder) notFetched(u *unit) (all []string) {
	for _, name := range u.origins {
		if tried := f.fetched[name]; tried != nil && tried.why != "" {
			all = append(all, fmt.Sprintf("its download failed, and is tried every %v: %s", fetchEvery, tried.why))
		}
	}
	return all
}

// compared sets s by the results of the comparisons of p's files with the members' ids.
func (f *Finder) compared(s *Status, u *unit, p place, now time.Time) {
	var why string
	for _, m := range u.members {
		v := u.verdict(p, m)
		switch {
		case v == nil || !m.ready:
		case v.finding == agrees:
			s.Prompts = max(s.Prompts, v.prompts)
		case why == "":
			why = fmt.Sprintf("%s: %s", m.url, v.why)
		}
	}
	switch u.standing(p, now) {
	case standsAgreed:
		s.Source, s.Folder = FromFiles, p.dir
	case standsSilent:
		s.Why = fmt.Sprintf("the files in %s are not used because they cannot be compared with an engine (%s)", p.dir, why)
		s.Advice = fmt.Sprintf("if they are the model's: --model-path %s=%s", u.key.model, p.dir)
	default:
		s.Source, s.Prompts, s.Why = Searching, 0, "its files are being compared with the engine's ids"
		if why != "" {
			s.Why += "; " + why
		}
	}
}

// refusals returns a text. The text has, for each place, the reason why the files of the place are not used.
func (u *unit) refusals(now time.Time) string {
	var all []string
	for _, p := range u.places {
		why := u.rejected[p]
		for _, m := range u.members {
			if v := u.verdict(p, m); why == "" && m.ready && v.settled(now) && v.finding == differs {
				why = v.why
			}
		}
		all = append(all, p.dir+": "+why)
	}
	return strings.Join(all, "; ")
}

// tell logs the source of the ids: once when it is decided, and after that at each change. It does not log files that
// the operator named.
func (f *Finder) tell(u *unit, s *Status) {
	mute := !slices.ContainsFunc(u.members, func(m *member) bool { return m.gives })
	state := strings.Join([]string{string(s.Source), s.Folder, s.Why, strconv.FormatBool(mute && s.Source == FromEngine)}, "\x00")
	if s.Source == Searching || s.Source == FromGiven || state == u.logged {
		return
	}
	u.logged = state
	switch {
	case s.Source == FromFiles:
		f.Log.Info("token ids are made here: the model's files were found, and their ids equal the engine's",
			"model", s.Model, "engine", s.Engine, "from", s.Folder, "checked_prompts", s.Prompts)
	case mute:
		f.Log.Info("no worker of the model gives token ids: without the model's files or a tokenizer service, texts and chats that arrive here are not matched with its KV events",
			"model", s.Model, "engine", u.members[0].engine, "because", s.Why, "to_make_them_here", s.Advice)
	default:
		f.Log.Info("token ids are asked of the engine, which delays requests", "model", s.Model, "engine", s.Engine,
			"because", s.Why, "to_make_them_here", s.Advice)
	}
}
