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

// How ids made in process are checked against the engine's while serving.
const (
	// checkFirst prompts of each model and worker are compared: a wrong tokenizer file or template differs on the
	// first.
	checkFirst = 20
	// checkProbed is checkFirst for a model whose files passed probes: what is left to find is what only real prompts
	// have.
	checkProbed = 5
	// checkEvery is the sample after that: a rare character or a changed engine shows within hours, at a thousandth of
	// the engine calls that asking for each prompt costs.
	checkEvery = 1000
	// checkPasses equal prompts in a row make a model believed again.
	checkPasses = 20
	// checkAtOnce bounds the comparisons under way.
	checkAtOnce = 4
)

// checks remembers how the models' ids compare. It is safe for concurrent use.
type checks struct {
	checked, differed atomic.Uint64
	running           atomic.Int64

	mu     sync.Mutex
	models map[string]*check // guarded by mu, and so are the checks
}

// check is one model's.
type check struct {
	made    uint64               // prompts made in process
	started map[string]int       // comparisons by worker URL, while fewer than checkFirst
	again   map[string]time.Time // no comparison with a worker before that: one came to nothing
	failing bool                 // the engine's ids are used
	passes  int                  // equal in a row, while failing
	equal   int                  // equal in a row

	prompts int    // the last comparisons that recent tells of, maxRecent at most
	recent  uint64 // a bit for each, the last one lowest: 1 differed
	worker  string // whose ids differed last, as far as that is known
}

// maxRecent is how many comparisons are told apart when somebody asks how they went.
const maxRecent = 64

// Comparison is how a model's ids made in process compared with the engines' lately.
type Comparison struct {
	Distrusted bool   // the engine's ids are used now
	Differed   int    // of the last Prompts
	Prompts    int    // 64 at most
	Worker     string // URL of the engine whose ids differed last
}

// Compared returns how the model's ids made in process compared. Prompts with images do not count.
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

// believed reports whether the model's ids are used.
func (c *checks) believed(model string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.of(model).failing
}

// proven reports whether the model's ids are used and as many prompts as make a model believed again were equal to an
// engine's, the last ones without a difference.
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

// failingOf returns the names of the models that fail, in order.
func failingOf[T any](models map[string]T, failing func(T) bool) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(models)) {
		if failing(models[name]) {
			names = append(names, name)
		}
	}
	return names
}

// due returns the worker with which the next prompt is to be compared, if any; first is how many prompts of each worker
// are. The workers have their turns: a comparison may come to nothing.
func (c *checks) due(model string, workers []Worker, first int, now time.Time) (w Worker, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.of(model)
	m.made++
	for i := range workers {
		w := workers[(int(m.made%uint64(len(workers)))+i)%len(workers)]
		if m.started[w.URL] < first && !now.Before(m.again[w.URL]) {
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

// prune forgets workers that have gone, once there are many more than are in use.
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

// undo takes back that a prompt was to be compared with w: another one is in place of it, not before again.
func (c *checks) undo(model string, w Worker, again time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.of(model)
	if m.started[w.URL] > 0 {
		m.started[w.URL]--
	}
	if again.After(m.again[w.URL]) {
		m.again[w.URL] = again
	}
}

// note books a comparison with a worker, "" where it is not known. turned says that the model came to be believed, or
// not to be.
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

// sample compares local with what a worker says, in the background, when it is time to. The goroutine ends with the
// timeout or Close, which waits for it.
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
	if running > checkAtOnce || int64(len(p.Request.Body())) > s.cfg.MaxPromptBytes || !s.room.take(size) {
		s.checks.running.Add(-1)
		s.checks.undo(name, w, now)
		return
	}
	question, model, made := &question{size: size}, p.Model, *local
	made.Kind = p.Kind
	question.hold()
	s.fill(question, p, nil, nil)
	question.anyhow = true
	question.media = false // ids are worth comparing where images' names cannot be
	c, v := s.peers.take(question, w, now)
	if v != granted { // a later prompt is compared in place of this one
		again := now
		if v != full && v != refusing { // it can be asked by nobody: prompts are not read in vain meanwhile
			again = now.Add(s.cfg.Pause)
		}
		s.drop(question)
		s.checks.running.Add(-1)
		s.checks.undo(name, w, again)
		return
	}
	replies := make(chan reply, 1)
	s.start(grant{worker: w, call: c}, question, replies)
	s.drop(question)    // the call holds it
	s.calls.Go(func() { // ends with the call
		defer s.checks.running.Add(-1)
		switch r := <-replies; {
		case r.err == nil:
			s.compare(model, w.URL, &made, &r.found)
		case errors.Is(r.err, errKey), errors.Is(r.err, errLimit): // this client's key is not used again soon; others' are
			s.checks.undo(name, w, now)
		default:
			s.checks.undo(name, w, time.Now().Add(s.cfg.Pause))
		}
	})
}

// checked is the name under which ids made here are checked: prompts with images apart, whose names depend on more
// settings of the engine than ids do.
func checked(model string, made *Found) string {
	if len(made.Features) > 0 {
		return imagesOf(model)
	}
	return model
}

// imagesOf is the name under which a model's prompts with images are checked.
func imagesOf(model string) string { return model + imagesSuffix }

const imagesSuffix = " (images)"

// compare books whether ids and features made here equal those of an engine, whose URL is worker where it is known. Only
// render tells features. The log says once that a model's ids are no longer believed, and once that they are again; what
// of a prompt differs is told to those who debug, as it is the client's.
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
		s.Log.Warn("images named in process differ from the engine's: the engine's names are used until twenty prompts in a row agree",
			"model", model, "worker", worker)
	case turned:
		s.Log.Warn("token ids made in process differ from the engine's: the engine's are used until twenty prompts in a row agree",
			"model", model, "worker", worker, "made_from", s.madeFrom(model, made.Kind), "position", at, "made_tokens", len(local),
			"engine_tokens", len(engine), "what_to_do", DiffersAdvice(model))
	}
	if !equal && s.Log.Enabled(s.ctx, slog.LevelDebug) {
		s.Log.Debug("a prompt whose token ids differ from the engine's", "model", model, "worker", worker, "position", at,
			"made", s.Local.Text(model, around(local, at)), "engine", s.Local.Text(model, around(engine, at)),
			"made_images", made.Features, "engine_images", said.Features)
	}
}

// madeFrom returns the folder that the model's ids are made from in process, "" where that is not known.
func (s *Source) madeFrom(model string, kind Kind) string {
	if l, ok := s.Local.(Located); ok {
		return l.Folder(model, kind)
	}
	return ""
}

// Keep forgets what was learned of models that are not served any more: how their ids compared, how their chats begin,
// and how likely their prompts are cached.
func (s *Source) Keep(served func(model string) bool) {
	forget(&s.checks.mu, &s.checks.models, func(name string) bool { return served(name) || served(strings.TrimSuffix(name, imagesSuffix)) })
	forget(&s.beginnings.mu, &s.beginnings.models, served)
	forget(&s.chances.mu, &s.chances.models, served)
}

// forget deletes from models, which mu guards, all that are not kept.
func forget[T any](mu *sync.Mutex, models *map[string]T, kept func(model string) bool) {
	mu.Lock()
	defer mu.Unlock()
	maps.DeleteFunc(*models, func(name string, _ T) bool { return !kept(name) })
}

// around are a few ids from position at on.
func around(ids []block.Token, at int) []block.Token {
	const some = 8
	return ids[min(at, len(ids)):min(at+some, len(ids))]
}

// DiffersAdvice says what an operator can do when the ids made from a model's files are not the engine's.
func DiffersAdvice(model string) string {
	return "is it the same model, revision and chat template? Name the folder of the right one: --model-path " + model + "=DIR"
}
