package gateway

import (
	"errors"
	"slices"
	"syscall"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/proxy"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/policy"
)

// DivisionOf returns the predicted milliseconds of both ways in the form of the admin API; nil if they were not
// compared.
func DivisionOf(d *policy.Division) *telemetry.Division {
	if d.Prefill == 0 && d.Decode == 0 {
		return nil
	}
	return &telemetry.Division{WholeMS: telemetry.Finite(d.Whole), PrefillMS: telemetry.Finite(d.Prefill), DecodeMS: telemetry.Finite(d.Decode), TransferMS: telemetry.Finite(d.Transfer)}
}

// recordDivision writes into the record of the request whether it is divided, and why. What an earlier attempt left
// there is removed.
func (x *exchange) recordDivision(d *warmpath.Decision) {
	n, rec := &d.Division, &x.rec
	rec.Bypass, rec.PrefillWorker, rec.PrefillRank, rec.Division = string(n.Bypass), "", 0, nil
	rec.PrefillMS, rec.TransferTokens, rec.TransferMS, rec.FetchedTokens, rec.FetchedFrom = 0, 0, 0, 0, ""
	if !n.Considered {
		return
	}
	rec.Division = DivisionOf(n)
	x.g.Telemetry.Divided(rec.Bypass)
	if d.Prefill != nil {
		p := d.Prefill
		rec.PrefillWorker, rec.PrefillRank = p.Worker.URL, p.Rank
		// The prompt is computed there, so the match and the cached tokens of the request are those of the prefill leg.
		rec.MatchTokens, rec.PredictedTokens, rec.AtRiskTokens, rec.Trust = p.MatchTokens, p.PredictedTokens, p.AtRiskTokens, p.Trust.String()
	}
}

// undivided returns why a request of the dialect must not be divided, "" if it may be. The fields that a prefill leg
// needs are known only for chats, completions and /generate.
func undivided(d api.Dialect, p *prepared) policy.Bypass {
	switch {
	case d != api.OpenAIChat && d != api.OpenAICompletions && d != api.SGLangGenerate:
		return policy.BypassEndpoint
	case p.toolCalls, p.read.MixedScopes:
		return policy.BypassRequest
	}
	return ""
}

// afterLegs decides how the attempt after a failed divided attempt is made. b is the worker that failed. If keep is
// true, the worker may get the next attempt, because it may serve the whole request.
func (x *exchange) afterLegs(b blame, result *proxy.Result) (keep bool) {
	q := &x.prepared.route
	if x.rec.Attempts+1 >= x.most {
		q.Undivided = policy.BypassOneWorker
	}
	switch {
	case result.Class == proxy.BadAttempt:
		q.Undivided = policy.BypassOneWorker
		return true
	case b.worker.ID == x.prefiller || errors.Is(result.Err, syscall.ECONNREFUSED) || x.begun.Load():
		return false
	}
	// Either the blocks did not come, or the decode worker refused the request. It is not known which of the two
	// workers is at fault. So the next attempt avoids both, if other workers can take their places. If no other can
	// decode, this one computes the prompt itself.
	pool, ok := x.g.Fleet.Snapshot().Pool(q.Model)
	if !ok || pool.Decode == nil {
		return false
	}
	others := func(p *fleet.Pool, than fleet.WorkerID) bool {
		return slices.ContainsFunc(p.Workers, func(w *fleet.Worker) bool {
			return w.Ready && w.ID != than && !slices.Contains(q.Exclude, w.ID)
		})
	}
	if others(pool.Prefill, x.prefiller) {
		q.Exclude = append(q.Exclude, x.prefiller)
	}
	if others(pool.Decode, b.worker.ID) {
		return false
	}
	q.Undivided = policy.BypassOneWorker
	return true
}
