package policy

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// Source is an external source of facts for a policy, such as the controller of a shared cache. It returns, for each
// worker in ascending order, how much the worker's cache has of the prompt and in all. The caller must not change the
// result.
//
// A policy does no I/O. The program that prepares requests calls the Source once for each request, before the first
// decision. The request waits for the answer, so the Source must limit its time. If the prompt is nil, the Source
// answers from memory.
type Source func(ctx context.Context, prompt []block.Token) []Cached

// Sourced is implemented by the [Parameters] of a policy that needs a Source. The program that builds the policy makes
// a Source with these settings, and puts it into the Spec.
type Sourced interface {
	SourceConfig() SourceConfig
}

// SourceConfig says how the controller of a shared cache is asked.
type SourceConfig struct {
	URL          string            // the controller's HTTP address
	APIKey       string            // the API key, sent as a bearer token; "" sends none
	PollInterval time.Duration     // the time between two questions about the occupancy of all caches
	Timeout      time.Duration     // the greatest time of one question
	Lookup       bool              // also ask about the prompt of each request
	Workers      map[string]string // the URLs of workers by the controller's names; other workers are found by address
}

// Cached is what a [Source] knows about one worker's cache.
type Cached struct {
	Worker fleet.WorkerID
	Tokens int   // how many tokens of the prompt's beginning the worker has cached
	Keys   int64 // how many chunks the worker has cached in all
}

// CachedAt returns the Source's answer about a worker; if there is none, an answer without tokens and chunks.
func (q *Query) CachedAt(w fleet.WorkerID) Cached {
	at, ok := slices.BinarySearchFunc(q.Cached, w, func(c Cached, w fleet.WorkerID) int { return cmp.Compare(c.Worker, w) })
	if !ok {
		return Cached{Worker: w}
	}
	return q.Cached[at]
}

// Source returns the external source of the policy, nil if it has none.
func (p *Policy) Source() Source { return p.spec.Source }
