package policy

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// Source is an external source of facts for a policy, such as the controller of a shared cache. It returns for each
// worker, in ascending order, how much its cache has in all and of the prompt; the caller must not change the result. A
// policy does no I/O: the program that prepares requests calls the Source once for each request, before the first
// decision. This time is part of the request's time, so the Source must bound it. Without a prompt the Source answers
// from memory.
type Source func(ctx context.Context, prompt []block.Token) []Cached

// Sourced is implemented by [Parameters] of a policy that needs a Source. The program that builds the policy makes the
// Source by these settings, and puts it into the Spec.
type Sourced interface {
	SourceConfig() SourceConfig
}

// SourceConfig says how the controller of a shared cache is asked.
type SourceConfig struct {
	URL          string            // the controller's HTTP address
	APIKey       string            // sent as a bearer token; "" sends none
	PollInterval time.Duration     // between two questions about the occupancy of all caches
	Timeout      time.Duration     // of one question
	Lookup       bool              // ask for each request's prompt, too
	Workers      map[string]string // URLs of workers by the controller's names; workers without one are found by address
}

// Cached is a [Source]'s knowledge of one worker's cache.
type Cached struct {
	Worker fleet.WorkerID
	Tokens int   // tokens of the prompt's beginning that are cached there
	Keys   int64 // chunks that are cached there in all
}

// CachedAt returns the Source's answer about a worker; the zero value if there is none.
func (q *Query) CachedAt(w fleet.WorkerID) Cached {
	at, ok := slices.BinarySearchFunc(q.Cached, w, func(c Cached, w fleet.WorkerID) int { return cmp.Compare(c.Worker, w) })
	if !ok {
		return Cached{Worker: w}
	}
	return q.Cached[at]
}

// Source returns the external source of the policy, nil if it has none.
func (p *Policy) Source() Source { return p.spec.Source }
