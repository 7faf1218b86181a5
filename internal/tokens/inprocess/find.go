package inprocess

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/tokens"
)

// look searches this machine for folders with the unit's files, one origin after another. An origin is the folder or
// name that a worker reports for its model. A read that hangs delays only the workers that named its origin.
func (f *Finder) look(ctx context.Context, u *unit, s *fleet.Snapshot, now time.Time) {
	if u.round == nil || u.round.changes != u.changes {
		u.round = &round{changes: u.changes, left: u.origins, found: map[string][]place{}}
	}
	r := u.round
	at := slices.IndexFunc(r.left, func(origin string) bool { return !f.hangs(u.naming(origin)) })
	switch {
	// No folder was found, and every remaining origin has a read that hangs. This round continues when such a read has
	// ended.
	case at < 0 && len(r.left) > 0 && len(r.found) == 0 && !f.several.Load():
		u.slow = whyHangs
	case at < 0:
		if f.several.Load() {
			r.named = append(r.named, f.nameless)
		}
		u.looksDone(r, now)
		f.begin(ctx, s, u, now)
	case !f.full():
		origin := r.left[at]
		r.left = slices.Concat(r.left[:at], r.left[at+1:])
		f.start(ctx, &u.job, &job{task: looking, deadline: now.Add(readTime), workers: u.naming(origin)},
			func(context.Context) func() {
				places, why := f.search(origin)
				return func() {
					r.found[origin] = places
					if why != "" {
						r.why = append(r.why, why)
					}
				}
			})
	}
}

// looksDone stores the results of r in u. Each origin of r was searched, or has a read that hangs.
func (u *unit) looksDone(r *round, now time.Time) {
	u.round, u.looked, u.lookedAt, u.places, u.why, u.slow = nil, true, now, nil, r.why, ""
	if r.hung || len(r.left) > 0 {
		u.slow = whyHangs
	}
	u.named = map[place][]string{}
	for _, p := range r.named {
		u.places, u.named[p] = append(u.places, p), []string{} // the operator named this place, not a worker
	}
	for _, origin := range u.origins {
		for _, p := range r.found[origin] {
			if u.named[p] == nil {
				u.places = append(u.places, p)
			}
			u.named[p] = append(u.named[p], origin)
		}
	}
	if len(u.why) == 0 && u.places == nil {
		why := "the engine does not report from where the model was loaded"
		if len(u.origins) > 0 {
			why = "the engine reports " + shownOrigin(u.origins[0]) + ", which is neither a folder nor ORG/NAME"
		}
		u.why = []string{why}
	}
	maps.DeleteFunc(u.rejected, func(p place, why string) bool { return u.named[p] == nil || why == whyHangs })
	maps.DeleteFunc(u.verdicts, func(key verdictKey, _ *verdict) bool { return u.named[key.place] == nil })
}

// full reports whether no further read may begin now.
func (f *Finder) full() bool { return f.readers >= maxReaders || f.stuck >= maxStuck }

// hangs reports whether each of these workers has a read that hangs. Such a read was given up and has not ended yet.
func (f *Finder) hangs(workers []string) bool {
	return !slices.ContainsFunc(workers, func(url string) bool { return f.hanging[url] == 0 })
}

// whyHangs is the reason that is reported when a read was given up.
var whyHangs = fmt.Sprintf("its files could not be read within %v", readTime)

// gaveUp records that a job of the unit was given up.
func (u *unit) gaveUp(j *job, now time.Time) {
	if j.task == loading {
		u.rejected[j.place], u.slow = whyHangs, whyHangs
		u.lookedAt = now
	} else if u.round != nil {
		u.round.hung = true
	}
}

// load starts to load the model at a place.
func (f *Finder) load(ctx context.Context, u *unit, p place, s *fleet.Snapshot, now time.Time) {
	var workers []string
	for _, origin := range u.named[p] {
		workers = append(workers, u.naming(origin)...)
	}
	if f.hangs(workers) {
		u.rejected[p], u.slow = whyHangs, whyHangs
		f.begin(ctx, s, u, now) // begin chooses another place
		return
	}
	if f.full() {
		return
	}
	f.start(ctx, &u.job, &job{task: loading, deadline: now.Add(readTime), workers: workers, place: p},
		func(context.Context) func() {
			m, why := f.read(p.dir)
			return func() {
				switch {
				case why != "":
					u.rejected[p] = why
				case f.units[u.key] == u:
					f.held[p], u.loaded = m, time.Now()
				}
			}
		})
}

// slowest is how long encoding the test texts of loadFound may take. The texts have 340 KB together. Known tokenizers
// take a hundredth of this time. A hostile tokenizer could be slow on purpose, and would delay requests.
const slowest = 5 * time.Second

// loadFound loads the model in a found folder. If the model cannot be used, loadFound returns the reason. The reason
// does not reveal the contents of files, because a worker may name any folder.
func loadFound(dir string, log *slog.Logger) (m *Model, why string) {
	defer func() {
		if r := recover(); r != nil {
			log.Error("a model's files made the router panic: they are not used; please report this", "folder", dir)
			m, why = nil, "the files are broken"
		}
	}()
	m, err := Load(newFoundFiles(dir))
	if err != nil {
		log.Debug("a model's files cannot be used", "folder", dir, "error", err)
		return nil, whyNotLoaded(err)
	}
	began := time.Now()
	for _, text := range [...]string{strings.Repeat("ab", 1<<15), strings.Repeat("The quick brown fox. ", 1<<13),
		strings.Repeat("0 \n", 1<<15)} {
		if _, err := m.AppendIDs(nil, text, true); err != nil {
			return nil, "the tokenizer refuses a long text"
		}
		if time.Since(began) > slowest {
			return nil, "the tokenizer is too slow"
		}
	}
	return m, ""
}

// whyNotLoaded returns the reason why files cannot be used. The reason does not reveal the contents of files.
func whyNotLoaded(err error) string {
	if errors.Is(err, fs.ErrPermission) {
		return "its files may not be read by the user that the router runs as"
	}
	return "no tokenizer that is known here can be read from the files"
}

// fetch starts a download for one of the units, if downloads are allowed. Models that were not tried yet come first.
// After them comes the model whose last try is the oldest.
func (f *Finder) fetch(ctx context.Context, units []*unit, now time.Time) {
	if f.Hub == nil || f.fetching > 0 { // a Hub is not safe for concurrent use
		return
	}
	maps.DeleteFunc(f.fetched, func(_ string, tried *fetch) bool { return now.Sub(tried.began) >= fetchDay })
	var (
		next *unit
		best fetch
	)
	for _, u := range units {
		for _, name := range u.origins {
			if !hubNamed(name) {
				continue
			}
			try := fetch{name: name, began: now, workers: u.naming(name)}
			if tried := f.fetched[name]; tried != nil {
				try = *tried
			} else if !f.mayFetch(try.workers) {
				continue
			}
			if !try.done && !now.Before(try.again) && (next == nil || try.again.Before(best.again)) {
				next, best = u, try
			}
		}
	}
	if next == nil {
		return
	}
	best.again = now.Add(fetchEvery)
	f.fetched[best.name] = &best
	f.start(ctx, &next.download, &job{task: fetching}, func(ctx context.Context) func() {
		ctx, cancel := context.WithTimeout(ctx, fetchTime)
		defer cancel()
		_, err := f.Hub.folder(ctx, hubModel{best.name, "main"})
		f.Hub.client.CloseIdleConnections()
		return func() {
			best.done, best.again = err == nil, time.Now().Add(fetchEvery)
			next.looked, next.round = false, nil // the files are in the cache now, so the unit looks there once more
			if best.why = ""; err != nil {
				best.why = bounded(err.Error())
				f.Log.Warn("a model's files could not be downloaded", "model", next.key.model, "name", best.name, "error", err)
			}
		}
	})
}

// mayFetch reports whether one more model that these workers name may be downloaded today.
func (f *Finder) mayFetch(workers []string) bool {
	if len(f.fetched) >= maxFetched {
		return false
	}
	return slices.ContainsFunc(workers, func(url string) bool {
		n := 0
		for _, tried := range f.fetched {
			if slices.Contains(tried.workers, url) {
				n++
			}
		}
		return n < maxFetchedFor
	})
}

// These constants bound the probes of a worker.
const (
	// probeTimeout is how long a worker may take for one probe. No client's request waits for a probe.
	probeTimeout = 5 * time.Second
	// probePause is the pause between two probes. busyPause replaces probePause while the worker has requests, because an
	// answer takes some milliseconds of the worker's processor.
	probePause, busyPause = 10 * time.Millisecond, 200 * time.Millisecond
	// leastProbes is how many prompts must have been compared before the files are used. Nine probes are texts, which
	// every model takes.
	leastProbes = 8
	// failedPause is the first pause after a worker did not answer a probe. The pause doubles with each failure, up to
	// lookEvery.
	failedPause = 2 * time.Second
	// failedOften is how many times in a row a worker may fail to answer before the Finder ignores this failure. The
	// pauses between failedOften tries take half a minute. Workers with the same version and origins are a group. If
	// another group agreed, the files are then used without the failing worker's group. The worker is still asked.
	failedOften = 5
	// silentPause is the pause before a worker that gave no ids is asked again. differsPause is the pause before a worker
	// with other ids is asked again. Both pauses are long because the worker's process is the same, so the result seldom
	// changes. The result can change, because a template may depend on the date.
	silentPause, differsPause = 5 * time.Minute, 10 * time.Minute
)

// verify starts to compare the files at p with the ids of the worker m.
func (f *Finder) verify(ctx context.Context, u *unit, p place, m *member) {
	model, key := f.held[p], verdictKey{m.identity, p}
	f.start(ctx, &u.job, &job{task: asking}, func(ctx context.Context) func() {
		v := f.probe(ctx, model, u.key, m)
		return func() {
			now := time.Now()
			switch v.finding {
			case failed:
				v.tries = 1
				if old := u.verdicts[key]; old != nil {
					v.tries += old.tries
				}
				v.again = now.Add(min(failedPause<<min(v.tries-1, 10), lookEvery))
			case silent:
				v.again = now.Add(silentPause)
			case differs:
				v.again = now.Add(differsPause)
			}
			u.verdicts[key] = v
		}
	})
}

// probe compares the model's ids with the worker's ids. It compares one prompt after another, until the worker gives
// other ids or no ids.
func (f *Finder) probe(ctx context.Context, model *Model, key unitKey, m *member) *verdict {
	v := &verdict{}
	for i, p := range model.probes(key.model, key.kind) {
		var read api.Request
		if err := api.Read(p.dialect, p.body, &read); err != nil {
			panic(fmt.Sprintf("bug: probe %s: %v", p.name, err))
		}
		prompt := tokens.Prompt{Request: &read, Model: key.model, Kind: key.kind}
		if f.Authorization != nil {
			prompt.Authorization = f.Authorization(m.url)
		}
		if i > 0 {
			f.pause(ctx, m)
		}
		made, ok := model.find(&prompt)
		if !ok || m.worker.MaxModelLen > 0 && len(made.Tokens) >= m.worker.MaxModelLen {
			continue // only the engine can make these ids, or the prompt is too long for the engine
		}
		asked, cancel := context.WithTimeout(ctx, probeTimeout)
		said := f.Asker.Ask(asked, m.worker, prompt)
		cancel()
		refused, refusing := said.Outcome == tokens.Refused, made.Outcome == tokens.Refused
		switch {
		case said.Outcome == tokens.Unsupported, i == 0 && refused: // the first probe is a simple text
			v.finding, v.why = silent, "its ids cannot be asked for (/tokenize and render)"
			return v
		case said.Outcome == tokens.Failed, said.Tokens == nil && !refused:
			v.finding, v.why = failed, "it did not answer a question for ids"
			return v
		case refused != refusing, !slices.Equal(made.Tokens, said.Tokens):
			v.finding, v.why = differs, f.difference(model, key, m, p.name, &made, &said)
			return v
		}
		v.prompts++
		if p.dialect == api.OpenAIChat {
			v.chats++
		}
	}
	if v.prompts < leastProbes {
		v.finding, v.why = silent, fmt.Sprintf("only %d prompts could be compared with its ids", v.prompts)
	}
	return v
}

// pause waits between two probes.
func (f *Finder) pause(ctx context.Context, m *member) {
	wait := probePause
	if requestsOn(f.Fleet.Snapshot(), m.holders, time.Now()) > 0 {
		wait = busyPause
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// spelled returns the vocabulary's spelling of ids, cut after 80 bytes. It does not run the decoder, because a worker
// may have named the files.
func (m *Model) spelled(ids []block.Token) string {
	const most = 80
	var out []byte
	for i, id := range ids {
		if i > 0 {
			out = append(out, ' ')
		}
		if text, ok := m.tokenizer.Spelling(id); ok {
			out = append(out, text[:min(len(text), most)]...)
		} else {
			out = strconv.AppendUint(out, uint64(id), 10)
		}
	}
	return strings.ToValidUTF8(string(out[:min(len(out), most)]), "")
}

// difference logs the position where a probe differs, and returns a short description.
func (f *Finder) difference(model *Model, key unitKey, m *member, name string, made, said *tokens.Found) string {
	at := 0
	for at < len(made.Tokens) && at < len(said.Tokens) && made.Tokens[at] == said.Tokens[at] {
		at++
	}
	show := func(found *tokens.Found) string {
		if found.Outcome == tokens.Refused {
			return "(refused)"
		}
		const some = 8
		return model.spelled(found.Tokens[min(at, len(found.Tokens)):min(at+some, len(found.Tokens))])
	}
	f.Log.Warn("token ids made from files differ from the engine's: the engine's are used", "model", key.model, "worker",
		m.url, "probe", name,
		"position", at, "made", show(made), "engine", show(said), "made_tokens", len(made.Tokens), "engine_tokens",
		len(said.Tokens))
	return fmt.Sprintf("the ids of the probe %q differ from those of %s at position %d", name, m.url, at)
}
