package inprocess

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/tokens"
)

// look finds out which folders of this machine may hold the unit's files.
func (f *Finder) look(ctx context.Context, u *unit, now time.Time) {
	if f.full() {
		return
	}
	var origins, strange []string
	for _, origin := range u.origins {
		if strings.HasPrefix(origin, "/") || hubNamed(origin) {
			origins = append(origins, origin)
		} else {
			strange = append(strange, origin)
		}
	}
	changes := u.changes
	f.start(ctx, u, &job{task: looking, deadline: now.Add(readTime)}, func(context.Context) func() {
		places, why := look(origins, f.Cache)
		if origins == nil {
			why = []string{"its engine names no folder and no ORG/NAME that it was loaded from"}
			if strange != nil {
				why[0] += ", but " + shownOrigin(strange[0])
			}
		}
		return func() {
			u.looked, u.lookedAt, u.places, u.why, u.hangs = u.changes == changes, time.Now(), places, why, ""
			for p := range u.rejected {
				if !slices.Contains(places, p) {
					delete(u.rejected, p)
				}
			}
			for key := range u.verdicts {
				if !slices.Contains(places, key.place) {
					delete(u.verdicts, key)
				}
			}
		}
	})
}

// full reports whether nothing more may be read now.
func (f *Finder) full() bool { return f.readers >= maxReaders || f.stuck >= maxStuck }

// gaveUp notes that a read hangs, and tries it again with the next look.
func (u *unit) gaveUp() {
	u.hangs = fmt.Sprintf("its files could not be read within %v", readTime)
	if u.looked {
		for _, p := range u.places {
			if u.rejected[p] == "" { // the one that was being loaded
				u.rejected[p] = u.hangs
				break
			}
		}
	}
	u.looked, u.lookedAt = true, time.Now()
}

// load reads the files of a place.
func (f *Finder) load(ctx context.Context, u *unit, p place, now time.Time) {
	if f.full() {
		return
	}
	f.start(ctx, u, &job{task: loading, deadline: now.Add(readTime)}, func(context.Context) func() {
		m, why := f.read(p.dir)
		return func() {
			switch {
			case why != "":
				u.rejected[p] = why
			case f.units[u.key] == u:
				f.held[p] = m
			}
		}
	})
}

// slowest is how long a prompt of half a megabyte may take: known tokenizers take a hundredth of it. A tokenizer made
// to be slow would make requests wait.
const slowest = 5 * time.Second

// loadFound loads the model in a folder that a worker named, or says why it is of no use. What the files hold is not
// told: a worker may name any folder.
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
		return nil, "no tokenizer that is known here can be read from the files"
	}
	began := time.Now()
	for _, text := range [...]string{strings.Repeat("ab", 1<<15), strings.Repeat("The quick brown fox. ", 1<<13), strings.Repeat("0 \n", 1<<15)} {
		if _, err := m.AppendText(nil, text, true); err != nil {
			return nil, "the tokenizer refuses a long text"
		}
		if time.Since(began) > slowest {
			return nil, "the tokenizer is too slow"
		}
	}
	return m, ""
}

// fetch downloads a model that a worker named, where that is allowed and was not tried.
func (f *Finder) fetch(ctx context.Context, u *unit, now time.Time) {
	if f.Hub == nil || f.fetching > 0 { // a Hub is for one at a time
		return
	}
	for _, name := range u.origins {
		tried := f.fetched[name]
		if !hubNamed(name) || tried != nil && (tried.err == nil || now.Before(tried.again)) || tried == nil && len(f.fetched) >= maxFetched {
			continue
		}
		f.fetched[name] = &fetch{err: errUnreachable, again: now.Add(fetchEvery)}
		f.start(ctx, u, &job{task: fetching}, func(ctx context.Context) func() {
			_, err := f.Hub.folder(ctx, hubModel{name, "main"})
			f.Hub.client.CloseIdleConnections()
			return func() {
				f.fetched[name] = &fetch{err, time.Now().Add(fetchEvery)}
				u.looked = false // it is in the cache now
				if err != nil {
					f.Log.Warn("a model's files could not be downloaded", "model", u.key.model, "name", name, "error", err)
				}
			}
		})
		return
	}
}

// Bounds on probing a worker.
const (
	// probeTimeout is how long a worker may take for one probe: nobody waits for it.
	probeTimeout = 5 * time.Second
	// probePause lies between two probes, and busyPause while the worker has requests: an answer takes some
	// milliseconds of its processor.
	probePause, busyPause = 10 * time.Millisecond, 200 * time.Millisecond
	// leastProbes is how many prompts have to be compared: there are nine texts, which every model takes.
	leastProbes = 8
	// failedPause is the first pause before a worker that did not answer a probe is asked again; it doubles up to
	// lookEvery.
	failedPause = 2 * time.Second
	// silentPause is the pause before a worker that gives no ids is asked again, and differsPause before one whose ids
	// differ is: nothing seems to have changed, but a template can depend on the day.
	silentPause, differsPause = 5 * time.Minute, 10 * time.Minute
)

// verify asks a worker the probes.
func (f *Finder) verify(ctx context.Context, u *unit, p place, m *member) {
	model, key := f.held[p], verdictKey{m.identity, p}
	f.start(ctx, u, &job{task: asking}, func(ctx context.Context) func() {
		v := f.probe(ctx, model, u.key, m)
		return func() {
			now := time.Now()
			switch v.finding {
			case failed:
				if old := u.verdicts[key]; old != nil {
					v.tries = old.tries + 1
				}
				v.again = now.Add(min(failedPause<<min(v.tries, 10), lookEvery))
			case silent:
				v.again = now.Add(silentPause)
			case differs:
				v.again = now.Add(differsPause)
			}
			u.verdicts[key] = v
		}
	})
}

// probe compares the model's ids with the worker's, one prompt after another, up to the first that differs.
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
			continue // such prompts are for the engine
		}
		asked, cancel := context.WithTimeout(ctx, probeTimeout)
		said := f.Asker.Ask(asked, m.worker, prompt)
		cancel()
		refused, refusing := said.Outcome == tokens.Refused, made.Outcome == tokens.Refused
		switch {
		case said.Outcome == tokens.Unsupported, i == 0 && refused: // the first is a plain text
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

// spelled returns ids as the vocabulary spells them, up to some length. A decoder of files that a worker named is not
// run.
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

// difference logs where a probe differs, and returns it in short.
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
	f.Log.Warn("token ids made from files differ from the engine's: the engine's are used", "model", key.model, "worker", m.url, "probe", name,
		"position", at, "made", show(made), "engine", show(said), "made_tokens", len(made.Tokens), "engine_tokens", len(said.Tokens))
	return fmt.Sprintf("the ids of the probe %q differ from those of %s at position %d", name, m.url, at)
}
