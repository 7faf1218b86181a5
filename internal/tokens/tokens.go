package tokens

import (
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
)

// Outcome says where token ids came from, or why there are none. The values are labels of a metric.
type Outcome string

// The outcomes.
const (
	Given       Outcome = "given"       // the body carries ids
	InProcess   Outcome = "local"       // made in process
	Cached      Outcome = "cache"       // asked for before
	Shared      Outcome = "shared"      // another request was asking the same
	Beginning   Outcome = "beginning"   // those of a beginning that was asked for before; what follows them is estimated
	Render      Outcome = "render"      // the engine rendered the request
	Tokenize    Outcome = "tokenize"    // the engine tokenized the prompt
	Service     Outcome = "service"     // the tokenizer service made them
	Text        Outcome = "text"        // no ids, but the prompt's text: good for approximate matches
	Batch       Outcome = "batch"       // several prompts in one body
	Off         Outcome = "off"         // the budget is 0
	TooLong     Outcome = "too_long"    // longer than an engine is asked about
	Refused     Outcome = "refused"     // the engine will not tokenize this body, or refuses its key; it will say why when it is sent
	Unsupported Outcome = "unsupported" // no worker of the model has a token endpoint
	NoWorker    Outcome = "no_worker"   // no healthy worker of the model, or all are being left alone
	Limited     Outcome = "limit"       // not asked: all workers, or all together, had as many questions as they may, or seemed to be frozen
	TimedOut    Outcome = "timeout"     // nothing came within the time that the request waits
	Failed      Outcome = "error"       // every worker asked failed
)

// Found is what is known of a prompt's tokens. The slices are shared and must not be changed.
type Found struct {
	Tokens   []block.Token // nil when they are not known
	Features []block.Feature
	Outcome  Outcome
	Kind     Kind   // the engine that they were made for
	By       string // URL of the engine or the service that was asked for them, where one was
	// Sure is how many of Tokens are the engine's. Where they are not all (Outcome is Beginning), what follows stands
	// for text whose ids are not known: one for each four bytes, none of which any engine has.
	Sure int
	// Known and Stable are beginnings of Tokens that an earlier prompt had, and that later ones may have: see
	// tokenizer.Reuse. Only ids made in process have them.
	Known, Stable block.Prefix
	// Probed says that the ids are made from files whose ids agreed with the engines' in probes before they were used.
	Probed bool

	// Text is the prompt as one text (AppendText) when there are no ids but matches by text make sense: Outcome is Text
	// then, and Missing says why there are no ids. Without ids and text the request must be routed by load.
	Text    []byte
	Missing Outcome
}

// Kind is the engine behind a worker, as far as its token endpoints go.
type Kind uint8

// The kinds. Anything that is not SGLang is asked the way vLLM is.
const (
	VLLM Kind = iota
	SGLang
)

// Worker is an engine that may be asked.
type Worker struct {
	ID   uint32 // the caller's, for Source.Loads
	URL  string // without a trailing slash
	Kind Kind
	// What vLLM tells of itself; empty and 0 for others, and where it is not known.
	Version     string
	Root        string // the model as it was told to load it
	MaxModelLen int    // tokens of prompt and answer
}

// atLeast reports whether an engine's version is known to be that or a later one.
func atLeast(version string, major, minor int) bool {
	var is, sub int
	n, _ := fmt.Sscanf(version, "%d.%d", &is, &sub)
	return n == 2 && (is > major || is == major && sub >= minor)
}

// rootOf returns the root that all of workers have, where they name images as vLLM 0.32 does: the bytes behind the hash
// have been others before. Empty when they have none in common.
func rootOf(workers []Worker) string {
	if len(workers) == 0 {
		return ""
	}
	for i := range workers {
		if w := &workers[i]; w.Kind != VLLM || w.Root != workers[0].Root || !atLeast(w.Version, 0, 32) {
			return ""
		}
	}
	return workers[0].Root
}

// Local makes token ids in process. It is called concurrently and must not keep the request.
type Local interface {
	// Find returns the ids of a prompt; ok is false when it cannot for this one, and an engine is asked.
	Find(ctx context.Context, p *Prompt) (found Found, ok bool)
	// Text returns the text of ids, for messages.
	Text(model string, ids []block.Token) string
}

// Located is a [Local] that knows where the files lie from which it makes ids.
type Located interface {
	// Folder returns the folder of the model's files, for engines of a kind; "" when it makes no ids of that model.
	Folder(model string, kind Kind) string
}

// Source finds token ids. It is safe for concurrent use. It starts a goroutine for each question to engines and for
// each call, none of which outlives Close.
type Source struct {
	// Local, when set, is tried before any engine. Set it before the first Find.
	Local Local
	// Loads looks at all engines at once. What it returns tells what each of them has to do, so that the least busy one
	// is asked, and how long is worth waiting for it. Neither may block. nil is not known. Set it before the first
	// Find.
	Loads func() func(Worker) Load
	// Log tells where ids made in process, or beginnings, differ from the engine's; nil is silent.
	Log *slog.Logger

	cfg    Config
	client *http.Client
	cache  *cache
	peers  peers
	// service is asked before engines; nil is none.
	service *service

	ctx    context.Context // ended by Close: calls to engines hang on it, not on one client's request
	cancel context.CancelFunc
	calls  sync.WaitGroup

	room       room
	flights    flights
	beginnings beginnings
	chances    chances
	checks     checks

	asked, hedged, waited, late atomic.Uint64
}

// New returns a Source that asks through client, whose transport decides about connections. cfg has passed Validate.
// Close ends it.
func New(cfg Config, client *http.Client) *Source {
	ctx, cancel := context.WithCancel(context.Background())
	s := &Source{cfg: cfg, client: client, cache: newCache(cfg.CacheBytes), ctx: ctx, cancel: cancel}
	s.service, _ = parseService(cfg.Service) // Validate refuses what cannot be read
	if s.service != nil {
		s.service.connect(client)
		s.peers.service = s.service.worker.URL
	}
	s.peers.failures, s.peers.pause, s.peers.seed = cfg.Failures, cfg.Pause, maphash.MakeSeed()
	s.peers.all, s.peers.turns = map[string]*peer{}, map[uint64]uint64{}
	s.peers.loads = func() func(Worker) Load {
		if s.Loads == nil {
			return func(Worker) Load { return Load{} }
		}
		return s.Loads()
	}
	s.room.most = roomShare * min(cfg.MaxPromptBytes, 1<<40)
	s.flights.peers, s.flights.room, s.flights.all, s.flights.limit = &s.peers, &s.room, map[key]*flight{}, cfg.CacheBytes/backgroundShare
	return s
}

// Close ends all calls to engines and waits for them. Find must not be called after it.
func (s *Source) Close() {
	s.cancel()
	s.calls.Wait()
	if s.service != nil && s.service.client != nil {
		s.service.client.CloseIdleConnections()
	}
}

// Stats is what a Source has done so far.
type Stats struct {
	Entries, Bytes        int64  // of the cache
	Asked, Hedged, Opened uint64 // calls to engines, second calls beside a slow first, workers left alone
	Waited, Late          uint64 // questions that waited for their turn, answers that came when nobody waited any more
	// Checked and Differed count prompts whose ids made in process were compared with the engine's.
	Checked, Differed uint64
	Distrusted        []string // models whose ids made in process are not used now
	// BeginningsChecked and BeginningsDiffered count answers that were compared with the beginning which was expected
	// of them.
	BeginningsChecked, BeginningsDiffered uint64
	BeginningsOff                         []string // models whose beginnings are not used now
}

// Stats returns the counts so far.
func (s *Source) Stats() Stats {
	entries, bytes := s.cache.stats()
	return Stats{Entries: entries, Bytes: bytes, Asked: s.asked.Load(), Hedged: s.hedged.Load(), Opened: s.peers.opened.Load(),
		Waited: s.waited.Load(), Late: s.late.Load(),
		Checked: s.checks.checked.Load(), Differed: s.checks.differed.Load(), Distrusted: s.checks.distrusted(),
		BeginningsChecked: s.beginnings.checked.Load(), BeginningsDiffered: s.beginnings.differed.Load(), BeginningsOff: s.beginnings.off()}
}

// Find returns the tokens of p, asking one of workers (healthy ones that serve p's model, in any order) when it must;
// and p's text when that does not help. It returns within the budget, or when ctx ends; it never fails. A request waits
// for as long as a match is worth, at most: see Config.Budget.
func (s *Source) Find(ctx context.Context, p Prompt, workers []Worker) Found {
	if len(workers) > 0 {
		p.Kind = workers[0].Kind
		if p.Request.Multimodal {
			p.Root = rootOf(workers)
		}
	}
	found := s.find(ctx, &p, workers)
	found.Kind = p.Kind
	if found.Outcome != Beginning {
		found.Sure = len(found.Tokens)
	}
	if found.Tokens == nil {
		found.Missing = found.Outcome
		if text := AppendText(p.Scratch[:0], p.Request); len(text) > 0 {
			found.Text, found.Outcome = text, Text
		}
	}
	return found
}

func (s *Source) find(ctx context.Context, p *Prompt, workers []Worker) Found {
	if ids, outcome := InBody(p.Request, p.Kind); outcome != "" {
		return Found{Tokens: ids, Outcome: outcome}
	}
	if s.Local == nil {
		return s.fromOthers(ctx, p, workers)
	}
	local, ok := s.Local.Find(ctx, p)
	if !ok {
		return s.fromOthers(ctx, p, workers)
	}
	if s.checks.believed(checked(p.Model, &local)) {
		s.sample(p, &local, workers)
		return local
	}
	p.engineOnly = true // the engine's ids are the measure, not the service's
	found := s.fromOthers(ctx, p, workers)
	if found.Tokens != nil && found.Outcome != Beginning {
		local.Kind = p.Kind
		s.compare(p.Model, found.By, &local, &found)
	}
	return found
}

// fromOthers returns the tokens that the service or a worker makes of p, or made of it before. What is remembered needs
// no note of who made it: a prompt that is for engines only is one that Local can do, and never one that the service is
// asked for.
func (s *Source) fromOthers(ctx context.Context, p *Prompt, workers []Worker) Found {
	if s.cfg.Budget == 0 {
		return Found{Outcome: Off}
	}
	if int64(len(p.Request.Body())) > s.cfg.MaxPromptBytes {
		return Found{Outcome: TooLong}
	}
	l := listOf(p.Request)
	if a, ok := s.cache.get(l.key()); ok {
		return Found{Tokens: a.tokens, Features: a.features, Outcome: Cached}
	}
	if len(workers) == 0 && (s.service == nil || p.engineOnly) {
		return Found{Outcome: NoWorker}
	}
	start, begins := s.beginning(p.Model, l)
	if begins && s.answerNow(p, l, &start, workers) {
		return start.withStandIns(l)
	}
	worth := s.worth(p.Model, p.Request.PromptBytes()-start.at, workers)
	f, leads := s.flights.join(s.keyOf(p, l), questionBytes(p.Request), worth)
	if leads {
		s.fly(f, p, l, workers)
	}
	found := Found{Outcome: Limited} // the questions under way take all the room that they may
	if f != nil {
		found = s.wait(ctx, f, s.patience(worth), leads)
	}
	if found.Tokens == nil && begins {
		return start.withStandIns(l)
	}
	return found
}

// keyOf is the key of the question that p asks.
func (s *Source) keyOf(p *Prompt, l *list) key { return l.key().of(s.peers.client(p.Authorization)) }

// answerNow reports whether p is answered by the known beginning of its ids, without a wait for the rest. If so, an
// engine is asked in the background for ids that serve the chat's next request.
func (s *Source) answerNow(p *Prompt, l *list, start *known, workers []Worker) bool {
	fresh := len(l.turns) - start.at
	if !start.own && fresh*newShare >= len(l.turns) {
		return false
	}
	idle, unhurried := s.idle(p, workers)
	if unhurried {
		return false
	}
	if !start.own || idle || s.asksOn(fresh, l) {
		if f := s.flights.inBackground(s.keyOf(p, l), questionBytes(p.Request)); f != nil {
			s.fly(f, p, l, workers)
		}
	}
	return true
}

const (
	// newShare: a busy engine is asked for a chat's ids again once 1/newShare of its text is new; a chat that begins as
	// another one did then waits for them. Turns that are new to the engine are expected where the chat was sent.
	newShare = 2
	// sampleEvery is how many growing chats are answered by their beginnings before one is asked for anyhow.
	sampleEvery = 16
)

// idle reports whether an engine has nothing else to do, so that a question costs nobody anything. unhurried says that
// p waits for its ids though a beginning of them is known: when such an engine answers within the time that any request
// waits, and when the budget says that exactness is worth the wait.
func (s *Source) idle(p *Prompt, workers []Worker) (idle, unhurried bool) {
	unhurried = s.cfg.Budget > leastWait*leastShare
	if s.Loads == nil {
		return false, unhurried
	}
	load := s.Loads()
	for _, w := range workers[:min(len(workers), maxReach)] {
		if load(w).Requests == 0 {
			idle = true
			unhurried = unhurried || s.peers.expected(w.URL, p.Request.PromptBytes()) <= leastWait
		}
	}
	return idle, unhurried
}

// asksOn reports whether an engine is asked in the background for a chat whose earlier turn is known: when much is
// fresh, and for a sample.
func (s *Source) asksOn(fresh int, l *list) bool {
	return s.Loads == nil || s.beginnings.growing.Add(1)%sampleEvery == 0 || fresh*newShare >= len(l.turns)
}
