package policy

import (
	"cmp"
	"context"
	"slices"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// Source is an external source of facts for a policy, such as the controller of a shared cache. It returns, for each
// worker in ascending order, how much the worker's cache has of the prompt and in all. The caller must not change the
// result.
//
// A policy does no I/O. The program that prepares requests calls the Source once for each request, before the first
// decision. The request waits for the answer, so the Source must bound the time of a call. If the prompt is nil, the
// Source answers from memory, without a question.
//
// The program that builds the policy makes the Source, and puts it into the Spec.
type Source func(ctx context.Context, prompt []block.Token) []fleet.Cached

// CachedAt returns the Source's answer about a worker; if there is none, an answer without tokens and chunks.
func (q *Query) CachedAt(w fleet.WorkerID) fleet.Cached {
	at, ok := slices.BinarySearchFunc(q.Cached, w, func(c fleet.Cached, w fleet.WorkerID) int { return cmp.Compare(c.Worker, w) })
	if !ok {
		return fleet.Cached{Worker: w}
	}
	return q.Cached[at]
}

// Source returns the external source of the policy, nil if it has none.
func (p *Policy) Source() Source { return p.spec.Source }
