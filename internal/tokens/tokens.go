package tokens

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
)

// Outcome says where token ids came from, or why there are none. The values are labels of a metric.
type Outcome string

// The outcomes.
const (
	Given       Outcome = "given"       // the request's body has token ids
	InProcess   Outcome = "local"       // made in process
	Cached      Outcome = "cache"       // an earlier answer for this prompt was remembered
	Shared      Outcome = "shared"      // another request had already asked the same question, and its answer served both
	Beginning   Outcome = "beginning"   // the first ids are known from an earlier chat; the rest is estimated
	Render      Outcome = "render"      // the engine rendered the request
	Tokenize    Outcome = "tokenize"    // the engine tokenized the prompt
	Service     Outcome = "service"     // the tokenizer service made the ids
	Text        Outcome = "text"        // no ids were found; the prompt's text is used for approximate matches
	Batch       Outcome = "batch"       // the body has several prompts
	Off         Outcome = "off"         // the budget is 0
	TooLong     Outcome = "too_long"    // the body is longer than Config.MaxPromptBytes
	Refused     Outcome = "refused"     // the engine refuses the body or the client's key, or the body has no prompt
	Unsupported Outcome = "unsupported" // the workers have no token endpoint that can take the prompt
	NoWorker    Outcome = "no_worker"   // the model has no healthy worker, or its workers pause after failures
	Limited     Outcome = "limit"       // no worker was asked: calls or memory reached their limits, or workers seemed frozen
	TimedOut    Outcome = "timeout"     // no answer came within the time that the request waits
	Unrendered  Outcome = "unrendered"  // how the engine renders the request is not known, and the engine renders it for nobody
	Failed      Outcome = "error"       // every worker that was asked failed
)

// Found is what Find found for a prompt. The slices are shared and must not be changed.
type Found struct {
	Tokens   []block.Token // the prompt's token ids; nil: not known
	Features []block.Feature
	Outcome  Outcome
	Kind     Kind   // the engine that the ids were made for
	By       string // URL of the engine or the service that made the ids; empty: the ids are not from an answer of this moment
	// Sure is how many ids at the beginning of Tokens are known to be the engine's ids. Sure is less than len(Tokens) only
	// if Outcome is Beginning. The ids after the first Sure stand for text whose ids are unknown. No engine uses these
	// ids.
	Sure int
	// Known is the beginning of Tokens that an earlier prompt had, too. Stable is the beginning that later prompts may
	// have, too. tokenizer.Reuse explains both. Known and Stable are set only for ids made in process.
	Known, Stable block.Prefix
	// Probed says that the ids are made from files that the router found. Such files are used only after they passed the
	// probes.
	Probed bool

	// Text is the prompt as one text (AppendPromptText), for matches by text when there are no ids. With a text and no
	// ids, Outcome is Text, and Missing says why there are no ids. If there are neither ids nor a text, the request must
	// be routed by load.
	Text    []byte
	Missing Outcome
}

// Kind is the kind of a worker's engine. The kind decides which token endpoints are asked.
type Kind uint8

// The kinds. Every engine except SGLang has the kind VLLM.
const (
	VLLM Kind = iota
	SGLang
)

// Worker is an engine that may be asked.
type Worker struct {
	ID   uint32 // the fleet's WorkerID; Source.Loads gets the Worker with this ID
	URL  string // base URL, without a trailing slash
	Kind Kind
	// The next three facts are empty or 0 if they are not known.
	Version     string // version of vLLM; empty for other engines, whose versions are not compared with those of vLLM
	Root        string // the folder or name from which the engine loaded the model
	MaxModelLen int    // longest sum of prompt and answer, in tokens
}

// WorkerOf returns a worker of the fleet as an engine that may be asked, for a base model that the worker serves.
func WorkerOf(w *fleet.Worker, model string) Worker {
	out := Worker{ID: uint32(w.ID), URL: w.URL}
	switch w.Facts.Engine {
	case fleet.EngineSGLang:
		out.Kind = SGLang
	case fleet.EngineVLLM:
		out.Version = w.Facts.Version
	}
	for i := range w.Facts.Models {
		if m := &w.Facts.Models[i]; m.ID == model {
			out.Root, out.MaxModelLen = m.Root, m.MaxModelLen
			break
		}
	}
	return out
}

// atLeast reports whether an engine's version is known and is major.minor or later.
func atLeast(version string, major, minor int) bool {
	var is, sub int
	n, _ := fmt.Sscanf(version, "%d.%d", &is, &sub)
	return n == 2 && (is > major || is == major && sub >= minor)
}

// rootOf returns the root that all workers have in common, or "" if their roots differ. If a worker is not vLLM 0.32 or
// later, the result is "", because earlier versions hashed other bytes to name an image.
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

// Local makes token ids in process. Its methods are called concurrently, and must not keep the request.
type Local interface {
	// Find returns the ids of a prompt. If it cannot make them, ok is false, and an engine is asked.
	Find(ctx context.Context, p *Prompt) (found Found, ok bool)
	// Text returns the text of ids. It is used in log messages.
	Text(model string, ids []block.Token) string
}

// Located is a [Local] that knows the folder of each model's files.
type Located interface {
	// Folder returns the folder of the model's files for engines of a kind. It is "" when no ids are made for that
	// model.
	Folder(model string, kind Kind) string
}

// Source finds token ids. It is safe for concurrent use. It starts goroutines for questions, for calls, and for
// comparisons of ids. Close waits for all these goroutines.
type Source struct {
	// Local, if it is set, is asked before any engine. Set Local before the first Find.
	Local Local
	// Loads takes a snapshot of all engines' loads. It returns a function that gives the load of one worker. The loads
	// help to choose the worker that is asked. Load.PerToken of the first worker decides how long a request waits. Neither
	// function may block. If Loads is nil, no load is known. Set Loads before the first Find.
	Loads func() func(Worker) Load
	// Log reports ids and beginnings that differ from the engine's ids. If Log is nil, nothing is logged.
	Log *slog.Logger

	cfg    Config
	client *http.Client
	cache  *cache
	states workerStates
	// service is asked before engines. If it is nil, there is no service.
	service *service

	ctx    context.Context // canceled by Close; calls to engines use ctx, because a call may outlive its request
	cancel context.CancelFunc
	calls  sync.WaitGroup

	memory     memory
	flights    flights
	beginnings beginnings
	hitRates   hitRates
	checks     checks

	asked, hedged, waited, late atomic.Uint64
}

// New returns a Source that makes its calls with client. cfg must have passed Validate. Close ends the Source.
func New(cfg Config, client *http.Client) *Source {
	ctx, cancel := context.WithCancel(context.Background())
	s := &Source{cfg: cfg, client: client, cache: newCache(cfg.CacheBytes), ctx: ctx, cancel: cancel}
	s.service, _ = parseService(cfg.Service) // the error is always nil, since Validate has accepted cfg
	if s.service != nil {
		s.service.connect(client)
		s.states.service = s.service.worker.URL
	}
	s.states.failures, s.states.pause, s.states.seed = cfg.Failures, cfg.Pause, maphash.MakeSeed()
	s.states.all, s.states.turns = map[string]*workerState{}, map[uint64]uint64{}
	s.states.loads = func() func(Worker) Load {
		if s.Loads == nil {
			return func(Worker) Load { return Load{} }
		}
		return s.Loads()
	}
	s.memory.most = memoryShare * min(cfg.MaxPromptBytes, 1<<40)
	s.flights.states, s.flights.memory, s.flights.all, s.flights.limit = &s.states, &s.memory, map[key]*flight{},
		cfg.CacheBytes/backgroundShare
	return s
}

// Close ends all calls to engines and waits for them. Find must not be called after Close.
func (s *Source) Close() {
	s.cancel()
	s.calls.Wait()
	if s.service != nil && s.service.client != nil {
		s.service.client.CloseIdleConnections()
	}
}

// Stats is what a Source has done so far.
type Stats struct {
	Entries, Bytes int64  // number of remembered answers in the cache, and their size
	Asked          uint64 // number of calls to engines and to the service
	Hedged         uint64 // number of second calls, made because the first call was slow
	Opened         uint64 // number of times that a worker reached Config.Failures failures in a row
	Waited         uint64 // number of waits in line; a question in the background may wait several times
	Late           uint64 // number of answers that came after all their requests had stopped waiting
	// Checked is the number of prompts whose ids made in process were compared with the engine's ids. Differed is the
	// number of these prompts with a difference.
	Checked, Differed uint64
	Distrusted        []string // models whose ids made in process are not used at present
	// BeginningsChecked is the number of answers that were compared with the expected beginning. BeginningsDiffered is
	// the number of these answers with a difference.
	BeginningsChecked, BeginningsDiffered uint64
	BeginningsOff                         []string // models whose beginnings are not used at present
}

// Stats returns the counts so far.
func (s *Source) Stats() Stats {
	entries, bytes := s.cache.stats()
	return Stats{Entries: entries, Bytes: bytes, Asked: s.asked.Load(), Hedged: s.hedged.Load(),
		Opened: s.states.opened.Load(),
		Waited: s.waited.Load(), Late: s.late.Load(),
		Checked: s.checks.checked.Load(), Differed: s.checks.differed.Load(), Distrusted: s.checks.distrusted(),
		BeginningsChecked: s.beginnings.checked.Load(), BeginningsDiffered: s.beginnings.differed.Load(),
		BeginningsOff: s.beginnings.off()}
}

// Find returns the tokens of p. If Local cannot make them, Find asks the service or the given workers. These must be
// healthy workers of p's model, in any order. If there is no answer with tokens, Find returns p's text. Find waits for
// an answer until Config.Budget has passed or ctx ends, or for a shorter time if a match is worth less: see
// Config.Budget and Prompt.Patient.
func (s *Source) Find(ctx context.Context, p Prompt, workers []Worker) Found {
	if len(workers) > 0 {
		p.Kind = workers[0].Kind
		if p.Request.Multimodal {
			p.Root = rootOf(workers)
		}
	}
	asked := p.Request
	found := s.findAny(ctx, &p, workers)
	found.Kind, p.Request = p.Kind, asked
	if found.Outcome != Beginning {
		found.Sure = len(found.Tokens)
	}
	if found.Tokens == nil {
		found.Missing = found.Outcome
		if text := AppendPromptText(p.Scratch[:0], p.Request); len(text) > 0 {
			found.Text, found.Outcome = text, Text
		}
	}
	return found
}

// findAny finds the ids of a request of any dialect. A request to /v1/messages or /v1/responses is turned into a chat
// request first.
func (s *Source) findAny(ctx context.Context, p *Prompt, workers []Worker) Found {
	if !convertible(p.Request.Dialect) {
		return s.find(ctx, p, workers)
	}
	var how Chatting
	if local, ok := s.Local.(Chatter); ok {
		how = local.Chatting(p.Model, p.Kind)
	}
	c, err := chatOf(p.Request, p.Kind, how)
	switch {
	case err == nil:
		defer c.release()
		if p.Own = nil; p.Request.Dialect == api.OpenAIResponses {
			p.Own = p.Request
		}
		p.Request = &c.read
		return s.find(ctx, p, workers)
	case errors.Is(err, errRefused):
		return Found{Outcome: Refused}
	case p.Kind != VLLM || p.Request.Dialect == api.AnthropicCountTokens || p.Request.PreviousResponseID != "":
		return Found{Outcome: Unrendered}
	}
	found := s.fromOthers(ctx, p, workers) // the engine itself may render the request
	if found.Outcome == Unsupported {
		found.Outcome = Unrendered
	}
	return found
}

func (s *Source) find(ctx context.Context, p *Prompt, workers []Worker) Found {
	if ids, outcome := InBody(p.Request, p.Kind); outcome != "" {
		return Found{Tokens: ids, Outcome: outcome}
	}
	p.engineOnly = p.Request.Dialect == api.SGLangGenerate // services render only bodies of the OpenAI dialects
	if s.Local == nil {
		return s.fromOthers(ctx, p.own(), workers)
	}
	local, ok := s.Local.Find(ctx, p)
	p = p.own()
	if !ok {
		return s.fromOthers(ctx, p, workers)
	}
	if s.checks.believed(checked(p.Model, &local)) {
		s.sample(p, &local, workers)
		return local
	}
	p.engineOnly = true // ids made in process are compared with an engine's ids, not with the service's
	found := s.fromOthers(ctx, p, workers)
	if found.Tokens != nil && found.Outcome != Beginning {
		local.Kind = p.Kind
		s.compare(p.Model, found.By, &local, &found)
	}
	return found
}

// fromOthers returns the tokens of p that the service or a worker makes now, or made for an earlier request. If
// p.engineOnly is set, the service is not asked.
func (s *Source) fromOthers(ctx context.Context, p *Prompt, workers []Worker) Found {
	if s.cfg.Budget == 0 {
		return Found{Outcome: Off}
	}
	if int64(len(p.Request.Body())) > s.cfg.MaxPromptBytes {
		return Found{Outcome: TooLong}
	}
	l := turnsOf(p.Request)
	if a, ok := s.cache.get(l.key()); ok {
		return Found{Tokens: a.tokens, Features: a.features, Outcome: Cached}
	}
	if len(workers) == 0 && (s.service == nil || p.engineOnly) {
		return Found{Outcome: NoWorker}
	}
	start, begins := s.beginning(p.Model, l)
	begins = begins && !p.Patient // a patient caller gets all ids or none
	if begins && s.answerNow(p, l, &start, workers) {
		return start.withStandIns(l)
	}
	worth := s.worth(p.Model, p.Request.PromptBytes()-start.at, workers)
	f, leads := s.flights.join(s.keyOf(p, l), questionBytes(p.Request), worth)
	if leads {
		s.fly(f, p, l, workers)
	}
	patience := s.patience(worth)
	if p.Patient {
		patience = s.cfg.Budget
	}
	found := Found{Outcome: Limited} // f is nil: the questions under way already take all memory that they may take
	if f != nil {
		found = s.wait(ctx, f, patience, leads)
	}
	if found.Tokens == nil && begins {
		return start.withStandIns(l)
	}
	return found
}

// keyOf returns the key under which equal questions share one call to an engine: the key of the whole prompt, and of
// the client, because an engine answers each client by that client's own API key.
func (s *Source) keyOf(p *Prompt, l *promptTurns) key {
	return l.key().of(s.states.client(p.Authorization))
}

// answerNow decides whether p gets the known beginning of its ids now, without waiting for the other ids. If so,
// answerNow may also start a question in the background: its answer serves the chat's next request.
func (s *Source) answerNow(p *Prompt, l *promptTurns, start *known, workers []Worker) bool {
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
	// newShare: much of a chat is new if at least 1/newShare of the bytes of its turns come after the known beginning. If
	// the beginning is known from another chat, such a chat waits for all its ids. If the beginning is known from the
	// chat's own earlier turns, the new text is no reason to wait, but an engine is asked in the background.
	newShare = 2
	// sampleEvery: for one in sampleEvery growing chats with a known beginning, an engine is asked anyway.
	sampleEvery = 16
)

// idle returns two facts about a prompt with a known beginning. idle is true if an engine has no requests: a question
// to that engine delays no request. unhurried is true if p can wait for all of its ids, because an idle engine should
// answer within leastWait (or has not answered yet), or because the budget is long.
func (s *Source) idle(p *Prompt, workers []Worker) (idle, unhurried bool) {
	unhurried = s.cfg.Budget > leastWait*leastShare
	if s.Loads == nil {
		return false, unhurried
	}
	load := s.Loads()
	for _, w := range workers[:min(len(workers), maxReach)] {
		if load(w).Requests == 0 {
			idle = true
			unhurried = unhurried || s.states.expected(w.URL, p.Request.PromptBytes()) <= leastWait
		}
	}
	return idle, unhurried
}

// asksOn reports whether an engine is asked in the background for a chat with a known earlier turn. The engine is asked
// if at least 1/newShare of the chat is new, and for one in sampleEvery chats. If the engines' load is unknown, an
// engine is always asked. fresh is the number of new bytes.
func (s *Source) asksOn(fresh int, l *promptTurns) bool {
	return s.Loads == nil || s.beginnings.growing.Add(1)%sampleEvery == 0 || fresh*newShare >= len(l.turns)
}
