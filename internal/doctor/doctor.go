package doctor

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/internal/tokens/inprocess"
)

// Severity says how much a finding matters.
type Severity string

// The severities, the worst first.
const (
	Error   Severity = "error"   // requests fail, or are not routed by the cache
	Warning Severity = "warning" // the router works, but loses cache hits or cannot see its own mistakes
	Note    Severity = "note"    // nothing has to be mended; some setups want to know it
)

// rank orders severities, the worst first.
func (s Severity) rank() int { return slices.Index([]Severity{Error, Warning, Note}, s) }

// Finding is one thing that the examination found.
type Finding struct {
	Worker   string   `json:"worker,omitempty"` // URL of the worker; "": the finding is about several workers
	Check    string   `json:"check"`            // one of Checks
	Severity Severity `json:"severity"`
	Seen     string   `json:"seen"`
	Expected string   `json:"expected"`
	Fix      string   `json:"fix"` // what to do: a flag of the engine or a setting of Warmpath
}

// Checks are the names of all checks, in the order in which a worker passes them. docs/troubleshooting.md explains
// them.
var Checks = []string{
	"reachable", "health", "metrics", "prefix_cache", "cached_tokens", "prompt", "tokenize", "events", "event_stream", "replay",
	"event_tokens", "block_size", "hash_chain", "clock", "token_files", "role", "connector", "roles",
	"same_connector", "same_model", "same_block_size", "same_length",
	"same_hash_chain", "same_version",
}

// Worker is what the examination learned about one worker.
type Worker struct {
	URL         string   `json:"url"`
	Engine      string   `json:"engine,omitempty"`
	Version     string   `json:"version,omitempty"`
	Models      []string `json:"models,omitempty"`
	Root        string   `json:"root,omitempty"` // the folder or name from which the engine loaded its model
	MaxModelLen int      `json:"max_model_len,omitempty"`
	BlockSize   int      `json:"block_size,omitempty"`
	Ranks       int      `json:"ranks,omitempty"`
	Events      []Stream `json:"events,omitempty"`
	// Prompts are the three prompts that were sent: a first one, one with the same beginning, and a different one.
	Prompts []Answer `json:"prompts,omitempty"`
	// HashChain is the algorithm and the seed of the engine's block hashes; "": not known.
	HashChain string `json:"hash_chain,omitempty"`
}

// Stream is what was seen of the event stream of one rank.
type Stream struct {
	Rank      int    `json:"rank"`
	Endpoint  string `json:"endpoint"`
	Replay    string `json:"replay,omitempty"`
	Connected bool   `json:"connected"`
	Messages  uint64 `json:"messages"`
	Replayed  uint64 `json:"replayed"`
}

// Answer is the engine's answer to one prompt.
type Answer struct {
	PromptTokens int `json:"prompt_tokens"`
	CachedTokens int `json:"cached_tokens"` // -1: not reported
}

// Report is the result of an examination.
type Report struct {
	Workers  []Worker  `json:"workers"`
	Findings []Finding `json:"findings"` // sorted by worker, the worst first
}

// Problems returns the number of findings that are errors or warnings.
func (r *Report) Problems() (n int) {
	for _, f := range r.Findings {
		if f.Severity != Note {
			n++
		}
	}
	return n
}

// Options say what to examine. Targets is required.
type Options struct {
	Targets []discovery.Target
	// Listen is the longest time for which events are awaited, at the beginning and after the prompts. Default 10 s: an
	// SGLang engine on a busy machine may take seconds to publish.
	Listen time.Duration
	// Prompt is the time limit of one prompt. Default 2 minutes: the first prompt of an engine may compile kernels.
	Prompt time.Duration
	// Models are the folders of models' files that the operator named, and Cache is the Hugging Face cache in which the
	// files of other models are looked for. If FilesOff is set, no files are compared.
	Models   []inprocess.Path
	Cache    string
	FilesOff bool
	// BlockSize and BlockSizes are the router's settings routing.block_size and routing.block_sizes.
	BlockSize  int
	BlockSizes map[string]int
	// Seeds are further values of PYTHONHASHSEED to try for the engine's hash chain. The usual ones are always tried.
	Seeds []string
	// Progress gets one line for each step. It is called by one goroutine at a time. Nil means that nobody wants to know.
	Progress func(line string)
	// Network is the network of the workers; nil means the machine's.
	Network network.Network
	Log     *slog.Logger // for the search for models' files; nil means that nothing is logged
}

// atOnce bounds the number of workers that are examined at the same time.
const atOnce = 8

// Examine examines all workers, at most eight at the same time, and then compares them with each other. A worker that
// does not answer is a finding. If ctx ends, Examine returns what was found until then. The prompts cost each worker
// some hundred tokens.
func Examine(ctx context.Context, o Options) *Report {
	o.Listen, o.Prompt = cmp.Or(o.Listen, 10*time.Second), cmp.Or(o.Prompt, 2*time.Minute)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	var mu sync.Mutex
	tell := o.Progress
	o.Progress = func(line string) {
		mu.Lock()
		defer mu.Unlock()
		tell(line)
	}
	exams := make([]*exam, len(o.Targets))
	places := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for i, t := range o.Targets {
		exams[i] = newExam(&o, t)
		wg.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			exams[i].run(ctx)
		})
	}
	wg.Wait()
	report := &Report{Workers: []Worker{}, Findings: []Finding{}}
	for _, e := range exams {
		report.Workers = append(report.Workers, e.Worker)
		report.Findings = append(report.Findings, e.findings...)
	}
	report.Findings = append(report.Findings, compareFiles(ctx, &o, exams)...)
	report.Findings = append(report.Findings, compareWorkers(exams)...)
	order := func(f Finding) int { // findings about several workers come last
		i := slices.IndexFunc(report.Workers, func(w Worker) bool { return w.URL == f.Worker })
		if i < 0 {
			return len(report.Workers)
		}
		return i
	}
	slices.SortStableFunc(report.Findings, func(a, b Finding) int {
		return cmp.Or(order(a)-order(b), a.Severity.rank()-b.Severity.rank(), slices.Index(Checks, a.Check)-slices.Index(Checks, b.Check))
	})
	return report
}
