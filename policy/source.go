package policy

import (
	"cmp"
	"context"
	"slices"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// Source is an external source of facts for a policy, such as the controller of a shared cache. It returns for each
// worker, in ascending order, how much its cache has in all and of the prompt; the caller must not change the result. A
// policy does no I/O: the program that prepares requests calls the Source before the policy decides. Its time is part
// of the request's time, so it must bound its own time.
type Source func(ctx context.Context, prompt []block.Token) []Cached

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

// Source returns the external source that the policy wants to be asked before it decides, nil if there is none.
func (p *Policy) Source() Source { return p.spec.Source }
