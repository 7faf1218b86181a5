package tokens

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

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
	Render      Outcome = "render"      // the engine rendered the request
	Tokenize    Outcome = "tokenize"    // the engine tokenized the prompt
	Service     Outcome = "service"     // the tokenizer service made them
	Text        Outcome = "text"        // no ids, but the prompt's text: good for approximate matches
	Batch       Outcome = "batch"       // several prompts in one body
	Off         Outcome = "off"         // the budget is 0
	TooLong     Outcome = "too_long"    // longer than an engine is asked about
	Refused     Outcome = "refused"     // the engine will not tokenize this body; it will say why when it is sent
	Unsupported Outcome = "unsupported" // no worker of the model has a token endpoint
	NoWorker    Outcome = "no_worker"   // no healthy worker of the model, or all are being left alone
	TimedOut    Outcome = "timeout"     // nothing came within the budget
	Failed      Outcome = "error"       // every worker asked failed
)

// Found is what is known of a prompt's tokens. The slices are shared and must not be changed.
type Found struct {
	Tokens   []block.Token // nil when they are not known
	Features []block.Feature
	Outcome  Outcome
	Kind     Kind // the engine that they were made for
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

// rootOf returns the root that all of workers have, where they name images as vLLM 0.32 does: the bytes behind the hash have
// been others before. Empty when they have none in common.
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

// Source finds token ids. It is safe for concurrent use. It starts a goroutine for each call to an engine, none of which
// outlives the budget or Close.
type Source struct {
	// Local, when set, is tried before any engine. Set it before the first Find.
	Local Local
	// Log tells where ids made in process differ from the engine's; nil is silent.
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

	mu      sync.Mutex
	flights map[key]*flight // guarded by mu; prompts that an engine is being asked for now

	checks        checks
	asked, hedged atomic.Uint64
}

// flight is one question to engines, with everyone who waits for its answer.
type flight struct {
	done   chan struct{} // closed by the leader when result stands
	result Found         // written by the leader only, before done is closed
}

// New returns a Source that asks through client, whose transport decides about connections. cfg has passed Validate. Close
// ends it.
func New(cfg Config, client *http.Client) *Source {
	ctx, cancel := context.WithCancel(context.Background())
	s := &Source{
		cfg: cfg, client: client, cache: newCache(cfg.CacheBytes), flights: map[key]*flight{},
		peers: peers{failures: cfg.Failures, pause: cfg.Pause, all: map[string]*peer{}},
		ctx:   ctx, cancel: cancel,
	}
	s.service, _ = parseService(cfg.Service) // Validate refuses what cannot be read
	if s.service != nil {
		s.service.connect(client)
	}
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
	// Checked and Differed count prompts whose ids made in process were compared with the engine's.
	Checked, Differed uint64
	Distrusted        []string // models whose ids made in process are not used now
}

// Stats returns the counts so far.
func (s *Source) Stats() Stats {
	entries, bytes := s.cache.stats()
	return Stats{Entries: entries, Bytes: bytes, Asked: s.asked.Load(), Hedged: s.hedged.Load(), Opened: s.peers.opened.Load(),
		Checked: s.checks.checked.Load(), Differed: s.checks.differed.Load(), Distrusted: s.checks.distrusted()}
}

// Find returns the tokens of p, asking one of workers (healthy ones that serve p's model, in any order) when it must; and
// p's text when that does not help. It returns within the budget, or when ctx ends; it never fails.
func (s *Source) Find(ctx context.Context, p Prompt, workers []Worker) Found {
	if len(workers) > 0 {
		p.Kind = workers[0].Kind
		if p.Request.Multimodal {
			p.Root = rootOf(workers)
		}
	}
	found := s.find(ctx, &p, workers)
	found.Kind = p.Kind
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
	if found.Tokens != nil {
		s.compare(p.Model, "the engine", &local, &found)
	}
	return found
}

// fromOthers returns the tokens that the service or a worker makes of p, or made of it before. What is remembered needs no
// note of who made it: a prompt that is for engines only is one that Local can do, and never one that the service is asked for.
func (s *Source) fromOthers(ctx context.Context, p *Prompt, workers []Worker) Found {
	if s.cfg.Budget == 0 {
		return Found{Outcome: Off}
	}
	if int64(len(p.Request.Body())) > s.cfg.MaxPromptBytes {
		return Found{Outcome: TooLong}
	}
	k, err := keyOf(p.Request)
	if err != nil {
		return Found{Outcome: Refused}
	}
	if a, ok := s.cache.get(k); ok {
		return Found{Tokens: a.tokens, Features: a.features, Outcome: Cached}
	}
	if len(workers) == 0 && (s.service == nil || p.engineOnly) {
		return Found{Outcome: NoWorker}
	}
	f, leads := s.join(k)
	if !leads {
		return s.wait(ctx, f)
	}
	defer s.leave(k, f)
	f.result = s.ask(newQuestion(p), workers)
	if f.result.Tokens != nil {
		s.cache.put(k, &answer{tokens: f.result.Tokens, features: f.result.Features})
	}
	return f.result
}

// join returns the flight for k; the caller leads it when there was none.
func (s *Source) join(k key) (f *flight, leads bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f = s.flights[k]; f != nil {
		return f, false
	}
	f = &flight{done: make(chan struct{}), result: Found{Outcome: Failed}}
	s.flights[k] = f
	return f, true
}

// leave ends the flight that the caller leads.
func (s *Source) leave(k key, f *flight) {
	s.mu.Lock()
	delete(s.flights, k)
	s.mu.Unlock()
	close(f.done)
}

// wait returns what f's leader finds.
func (s *Source) wait(ctx context.Context, f *flight) Found {
	budget := time.NewTimer(s.cfg.Budget)
	defer budget.Stop()
	select {
	case <-f.done:
		found := f.result
		if found.Tokens != nil {
			found.Outcome = Shared
		}
		return found
	case <-budget.C:
	case <-ctx.Done():
	}
	return Found{Outcome: TimedOut}
}
