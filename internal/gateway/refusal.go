package gateway

import (
	"context"
	"errors"
	"fmt"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/internal/api"
)

// noWorker answers a request for which no worker could be chosen.
func (x *exchange) noWorker(err error) {
	if errors.Is(err, context.Canceled) {
		// The client may still read: it closed only its sending side, or a drain ends its request. Returning here would
		// send an empty 200, so the connection is cut.
		x.g.Telemetry.Refused("client_gone")
		x.abort = true
		return
	}
	if limited := x.limitedError(err); limited != nil {
		x.refuse(limited)
		return
	}
	x.refuse(x.g.routeError(err, x.rec.Model, x.prepared.route.Rank.Number()))
}

// refuse answers the client with err before any worker was asked.
func (x *exchange) refuse(err error) {
	answer := api.AsError(err)
	x.rec.Status = answer.Status
	x.name()
	x.g.refuse(x.w, x.dialect, answer.Code, answer)
}

// routeError turns the Router's error about a request into the error for the client. rank is -1 when the request did
// not ask for a rank.
func (g *Gateway) routeError(err error, model string, rank int) *api.Error {
	var ready *api.Error
	switch {
	case errors.As(err, &ready):
		return ready
	case errors.Is(err, warmpath.ErrUnknownModel):
		if waiting, workers := g.unheard(); waiting > 0 || workers == 0 {
			return api.NoModelYet(model, waiting, workers)
		}
		return api.UnknownModel(model)
	case errors.Is(err, warmpath.ErrSaturated):
		return api.Saturated(err)
	case errors.Is(err, warmpath.ErrNoWorker):
		return api.NoWorker(err)
	case errors.Is(err, warmpath.ErrUndividable):
		return api.Invalid("", err.Error())
	case errors.Is(err, warmpath.ErrNoTarget):
		return api.Invalid("", "the header "+headerTarget+" must be the URL of a worker that serves the model, as in /admin/workers")
	case errors.Is(err, warmpath.ErrNoRank):
		return api.Invalid("", g.noRank(model, rank))
	case errors.Is(err, context.DeadlineExceeded):
		return api.WorkerTimeout(err)
	case errors.Is(err, warmpath.ErrUnknownPolicy):
		return api.Invalid("", err.Error())
	}
	return api.AsError(err)
}

// noRank returns a text that says which data-parallel ranks the model's workers have.
func (g *Gateway) noRank(model string, rank int) string {
	snap := g.Fleet.Snapshot()
	pool, ok := snap.Pool(model)
	if !ok || len(pool.Holders) == 0 {
		return fmt.Sprintf("no worker of this model has the data-parallel rank %d", rank)
	}
	least, most := snap.Rank(pool.Holders[0]), 0
	for _, h := range pool.Holders {
		least, most = min(least, snap.Rank(h)), max(most, snap.Rank(h))
	}
	return fmt.Sprintf("no worker of this model has the data-parallel rank %d; there are ranks %d to %d", rank, least, most)
}

// unheard returns the number of workers whose models are not known yet, and the number of all workers.
func (g *Gateway) unheard() (waiting, workers int) {
	all := g.Fleet.Snapshot().Workers()
	for _, w := range all {
		if len(w.Facts.Models) == 0 {
			waiting++
		}
	}
	return waiting, len(all)
}
