package tokens

import (
	"cmp"
	"errors"
	"log/slog"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/block"
)

// These constants decide how often ids made in process are compared with the engine's ids while serving.
const (
	// checkFirst is how many prompts are compared at first, for each model and worker. If a tokenizer file or a
	// template is wrong, the first prompts differ.
	checkFirst = 20
	// checkProbed replaces checkFirst for a model whose files passed the probes: only real prompts can still show
	// differences.
	checkProbed = 5
	// After the first prompts, one prompt in checkEvery is compared. So a wrong id for a rare character, or a change of
	// the engine, is found within hours. The engines get calls for a thousandth of the prompts.
	checkEvery = 1000
	// checkPasses is how many prompts in a row must have equal ids before the ids made in process are used again.
	checkPasses = 20
	// checkAtOnce bounds the number of comparisons under way.
	checkAtOnce = 4
)

// checks records how the ids made in process compare with the engines' ids, for each name that the function checked
// returns. It is safe for concurrent use.
type checks struct {
	checked, differed atomic.Uint64
	running           atomic.Int64

	mu     sync.Mutex
	models map[string]*check // guarded by mu, also the fields of each check
}

// check is the record of one model, or of one model's prompts with images.
type check struct {
	made    uint64               // number of prompts that due has counted
	started map[string]int       // worker URL → number of first comparisons begun: see due
	again   map[string]time.Time // worker URL → time before which no first comparison begins, because a comparison had no result
	failing bool                 // the engine's ids are used instead of ids made in process
	passes  int                  // while failing: number of equal prompts in a row
	equal   int                  // number of equal prompts in a row

	prompts int    // number of comparisons in recent, at most maxRecent
	recent  uint64 // one bit for each of the last comparisons; the newest is the lowest bit; 1: the ids differed
	worker  string // URL of the worker with the last difference; empty: not known
}

// maxRecent is how many comparisons recent has room for.
const maxRecent = 64

// Comparison summarizes the last comparisons of a model's ids made in process with the engines' ids.
type Comparison struct {
	Distrusted bool   // the engine's ids are used now instead of ids made in process
	Differed   int    // number of differences in the last comparisons
	Prompts    int    // number of comparisons among which Differed counts, at most 64
	Worker     string // URL of the engine with the last difference
}

// Compared returns the last comparisons of a model's ids. Prompts with images have a separate record and do not count.
func (s *Source) Compared(model string) Comparison {
	s.checks.mu.Lock()
	defer s.checks.mu.Unlock()
	m := s.checks.models[model]
	if m == nil {
		return Comparison{}
	}
	return Comparison{m.failing, bits.OnesCount64(m.recent), m.prompts, m.worker}
}

func (c *checks) of(model string) *check {
	if c.models == nil {
		c.models = map[string]*check{}
	}
	m := c.models[model]
	if m == nil {
		m = &check{started: map[string]int{}, again: map[string]time.Time{}}
		c.models[model] = m
	}
	return m
}

// believed reports whether the model's ids made in process are used.
func (c *checks) believed(model string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.of(model).failing
}

// proven reports whether the model's ids made in process are used, and were equal to an engine's ids in the last
// checkPasses comparisons.
func (c *checks) proven(model string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.of(model)
	return !m.failing && m.equal >= checkPasses
}

func (c *checks) distrusted() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return failingOf(c.models, func(m *check) bool { return m.failing })
}

// failingOf returns the sorted names of the models for which failing returns true.
func failingOf[T any](models map[string]T, failing func(T) bool) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(models)) {
		if failing(models[name]) {
			names = append(names, name)
		}
	}
	return names
}

// due counts a prompt of the model, and returns a worker if this prompt's ids must be compared with that worker's ids.
// ok is false if no comparison is due. At first, as many prompts are compared with each worker as the parameter leading
// says: due counts such a comparison as begun. After that, one prompt in checkEvery is compared. The workers take
// turns, so that a worker without answers does not block comparisons with the other workers.
func (c *checks) due(model string, workers []Worker, leading int, now time.Time) (w Worker, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.of(model)
	m.made++
	for i := range workers {
		w := workers[(int(m.made%uint64(len(workers)))+i)%len(workers)]
		if m.started[w.URL] < leading && !now.Before(m.again[w.URL]) {
			m.started[w.URL]++
			m.prune(workers)
			return w, true
		}
	}
	if len(workers) > 0 && m.made%checkEvery == 0 {
		return workers[int(m.made/checkEvery)%len(workers)], true
	}
	return Worker{}, false
}

// prune forgets workers that are gone. To save time, it does so only when m has many more workers than are in use.
func (m *check) prune(workers []Worker) {
	if len(m.started) <= 4*len(workers)+64 {
		return
	}
	gone := func(url string) bool {
		return !slices.ContainsFunc(workers, func(w Worker) bool { return w.URL == url })
	}
	maps.DeleteFunc(m.started, func(url string, _ int) bool { return gone(url) })
	maps.DeleteFunc(m.again, func(url string, _ time.Time) bool { return gone(url) })
}

// undo forgets a comparison with w that had no result, so that a later prompt is compared instead. No first comparison
// with w begins before notBefore.
func (c *checks) undo(model string, w Worker, notBefore time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.of(model)
	if m.started[w.URL] > 0 {
		m.started[w.URL]--
	}
	if notBefore.After(m.again[w.URL]) {
		m.again[w.URL] = notBefore
	}
}

// note records a comparison with a worker; worker is "" if the worker is not known. turned reports whether the
// comparison changed the result of the method believed.
func (c *checks) note(model, worker string, equal bool) (turned bool) {
	c.checked.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.of(model)
	m.prompts, m.recent = min(m.prompts+1, maxRecent), m.recent<<1
	if !equal {
		m.recent |= 1
		m.worker = cmp.Or(worker, m.worker)
		c.differed.Add(1)
		turned = !m.failing
		m.failing, m.passes, m.equal = true, 0, 0
		return turned
	}
	m.equal++
	if !m.failing {
		return false
	}
	if m.passes++; m.passes < checkPasses {
		return false
	}
	m.failing, m.passes = false, 0
	return true
}

// sample compares local with a worker's answer in the background, if a comparison is due. The goroutine ends with
// callTimeout or Close, and Close waits for it.
func (s *Source) sample(p *Prompt, local *Found, workers []Worker) {
	if local.Tokens == nil {
		return
	}
	first := checkFirst
	if local.Probed {
		first = checkProbed
	}
	name, now := checked(p.Model, local), time.Now()
	w, ok := s.checks.due(name, workers, first, now)
	if !ok {
		return
	}
	size := questionBytes(p.Request)
	running := s.checks.running.Add(1)
	if running > checkAtOnce || int64(len(p.Request.Body())) > s.cfg.MaxPromptBytes || !s.memory.take(size) {
		s.checks.running.Add(-1)
		s.checks.undo(name, w, now)
		return
	}
	question, model, made := &question{size: size}, p.Model, *local
	made.Kind = p.Kind
	question.hold()
	s.fill(question, p, nil, nil)
	question.anyhow = true
	question.media = false // compare the ids even if the images' names cannot be compared
	c, v := s.states.take(question, w, now)
	if v != granted { // a later prompt is compared instead of this prompt
		again := now
		if v != full && v != refusing { // the worker will take no questions for a while, so the next comparison waits
			again = now.Add(s.cfg.Pause)
		}
		s.drop(question)
		s.checks.running.Add(-1)
		s.checks.undo(name, w, again)
		return
	}
	replies := make(chan reply, 1)
	s.start(grant{worker: w, call: c}, question, replies)
	s.drop(question)    // the call holds the question itself, until it ends
	s.calls.Go(func() { // ends with the call
		defer s.checks.running.Add(-1)
		switch r := <-replies; {
		case r.err == nil:
			s.compare(model, w.URL, &made, &r.found)
		// The worker refused only this client. Another client's prompt may be compared without a pause.
		case errors.Is(r.err, errKey), errors.Is(r.err, errLimit):
			s.checks.undo(name, w, now)
		default:
			s.checks.undo(name, w, time.Now().Add(s.cfg.Pause))
		}
	})
}

// checked returns the name under which the comparisons of made are recorded. Prompts with images have a separate name,
// because the images' names depend on more settings of the engine than ids do.
func checked(model string, made *Found) string {
	if len(made.Features) > 0 {
		return imagesOf(model)
	}
	return model
}

// imagesOf returns the name under which comparisons of a model's prompts with images are recorded.
func imagesOf(model string) string { return model + imagesSuffix }

const imagesSuffix = " (images)"

// compare records whether ids and features made in process equal an engine's ids and features. worker is the engine's
// URL, or "" if the engine is not known. Only render's answers have features. When the model's ids stop being used, or
// are used again, compare logs this once. The text that differs is logged at debug level only, because it is the
// client's text.
func (s *Source) compare(model, worker string, made, said *Found) {
	local, engine := made.Tokens, said.Tokens
	ids := slices.Equal(local, engine)
	equal := ids && (said.Outcome != Render || slices.Equal(made.Features, said.Features))
	turned := s.checks.note(checked(model, made), worker, equal)
	if s.Log == nil {
		return
	}
	at := common(local, engine)
	switch {
	case turned && equal:
		s.Log.Info("token ids made in process agree with the engine's again: they are used", "model", checked(model, made))
	case turned && ids:
		s.Log.Warn("images named in process differ from the engine's: the engine's names are used until twenty prompts in "+
			"a row agree", "model", model, "worker", worker)
	case turned:
		s.Log.Warn("token ids made in process differ from the engine's: the engine's are used until twenty prompts in a "+
			"row agree",
			"model", model, "worker", worker, "made_from", s.madeFrom(model, made.Kind), "position", at, "made_tokens",
			len(local), "engine_tokens", len(engine), "what_to_do", DiffersAdvice(model))
	}
	if !equal && s.Log.Enabled(s.ctx, slog.LevelDebug) {
		s.Log.Debug("a prompt whose token ids differ from the engine's", "model", model, "worker", worker, "position", at,
			"made", s.Local.Text(model, around(local, at)), "engine", s.Local.Text(model, around(engine, at)),
			"made_images", made.Features, "engine_images", said.Features)
	}
}

// madeFrom returns the folder with the files from which the model's ids are made, or "" if the folder is not known.
func (s *Source) madeFrom(model string, kind Kind) string {
	if l, ok := s.Local.(Located); ok {
		return l.Folder(model, kind)
	}
	return ""
}

// Keep forgets everything about models that are not served any more: comparisons of ids, beginnings of chats, and hit
// rates.
func (s *Source) Keep(served func(model string) bool) {
	forget(&s.checks.mu, &s.checks.models, func(name string) bool {
		return served(name) ||
			served(strings.TrimSuffix(name, imagesSuffix))
	})
	forget(&s.beginnings.mu, &s.beginnings.models, served)
	forget(&s.hitRates.mu, &s.hitRates.models, served)
}

// forget deletes the models for which kept returns false. mu guards models.
func forget[T any](mu *sync.Mutex, models *map[string]T, kept func(model string) bool) {
	mu.Lock()
	defer mu.Unlock()
	maps.DeleteFunc(*models, func(name string, _ T) bool { return !kept(name) })
}

// around returns up to eight ids that begin at position at. In a log line these ids show where two lists of ids differ.
func around(ids []block.Token, at int) []block.Token {
	const some = 8
	return ids[min(at, len(ids)):min(at+some, len(ids))]
}

// DiffersAdvice tells an operator what to do when the ids made from a model's files are not the engine's ids.
func DiffersAdvice(model string) string {
	return "is it the same model, revision and chat template? Name the folder of the right one: --model-path " + model +
		"=DIR"
}
