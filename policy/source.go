package policy

import (
	"cmp"
	"context"
	"slices"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// Source is an external source of facts for a policy, such as the controller of a shared cache. It returns what it
// knows of the workers' caches, by ascending worker, and which part of the prompt they have; the result must not be
// changed. A policy does no I/O: a Source is called by the program that prepares requests, before the policy decides.
// Its time is part of the request's time, so it must bound itself.
type Source func(ctx context.Context, prompt []block.Token) []Cached

// Cached is what a [Source] knows of one worker's cache.
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

// Source returns the external source that the policy wants to be asked before it decides, nil if there is none.
func (p *Policy) Source() Source { return p.spec.Source }
