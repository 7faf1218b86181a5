package gateway

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/connector"
	"github.com/warmpath/warmpath/internal/proxy"
	"github.com/warmpath/warmpath/internal/telemetry"
)

const (
	// maxTurns and maxTurnBytes bound the memory for what decode workers keep of finished turns. A turn of 32,000
	// tokens takes 150 kB.
	maxTurns     = 4096
	maxTurnBytes = 64 << 20
)

// keptTurn is one finished turn of a conversation, whose KV blocks the decode worker keeps for the prefill worker of
// the next turn. It is immutable.
type keptTurn struct {
	worker             *fleet.Worker
	rank               int
	model, salt, extra string
	tenant             string
	tokens             []block.Token // a prompt that begins with exactly these may read the blocks: see connector.Kept
	params             []byte        // for the connector
	since, until       time.Time
}

func (t *keptTurn) size() int { return 4*len(t.tokens) + len(t.params) }

// gone reports whether the worker has lost the blocks: another process is at its URL, or the weights of the model were
// loaded again.
func (t *keptTurn) gone(s *fleet.Snapshot) bool {
	w := s.ByID(t.worker.ID)
	return w == nil || w.Incarnation != t.worker.Incarnation || w.ModelOrders != t.worker.ModelOrders
}

// turns are the kept turns, oldest first.
type turns struct {
	mu    sync.Mutex
	kept  []listedTurn
	bytes int
}

// listedTurn is a kept turn, with what the search for it looks at first.
type listedTurn struct {
	length int
	last   block.Token
	*keptTurn
}

// keep adds a turn. Turns that ended, and the oldest ones, make room for it.
func (s *turns) keep(t *keptTurn, now time.Time) {
	if t.size() > maxTurnBytes {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = append(s.kept, listedTurn{len(t.tokens), t.tokens[len(t.tokens)-1], t})
	s.bytes += t.size()
	drop := 0
	for _, old := range s.kept {
		if len(s.kept)-drop <= maxTurns && s.bytes <= maxTurnBytes && now.Before(old.until) {
			break
		}
		s.bytes -= old.size()
		drop++
	}
	s.kept = slices.Delete(s.kept, 0, drop)
}

// find returns the longest turn with which the prompt of a request begins, nil if there is none. sure are the first
// tokens of the prompt, as far as the engine has the same ones.
func (s *turns) find(q *warmpath.Request, sure []block.Token, snap *fleet.Snapshot, now time.Time) (best *keptTurn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.kept {
		n := t.length
		if n > len(sure) || t.last != sure[n-1] || best != nil && n <= len(best.tokens) {
			continue
		}
		if t.model == q.Model && t.salt == q.Salt && t.extra == q.Extra && t.tenant == q.Tenant && now.Before(t.until) && !t.gone(snap) &&
			slices.Equal(t.tokens, sure[:n]) {
			best = t.keptTurn
		}
	}
	return best
}

// take removes a turn, because its blocks are about to be read or released: afterwards the engine frees them, and they
// may get other content. It returns false if another request took the turn before.
func (s *turns) take(t *keptTurn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.kept, func(k listedTurn) bool { return k.keptTurn == t })
	if i < 0 {
		return false
	}
	s.bytes -= t.size()
	s.kept = slices.Delete(s.kept, i, i+1)
	return true
}

// unreadable forgets the turns of a worker that are as old as one that could not be read, or older: the engine may keep
// blocks for a shorter time than the connector's file says.
func (s *turns) unreadable(t *keptTurn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = slices.DeleteFunc(s.kept, func(k listedTurn) bool {
		old := k.worker.ID == t.worker.ID && !k.since.After(t.since)
		if old {
			s.bytes -= k.size()
		}
		return old
	})
}

// findTurn finds the turn whose blocks the prefill worker of the request may read.
func (g *Gateway) findTurn(p *prepared) {
	q := &p.route
	if len(q.Features) > 0 || p.read.MixedScopes {
		return // blocks with images have more in them than tokens
	}
	if p.kept = g.turns.find(q, p.sure(), g.Fleet.Snapshot(), time.Now()); p.kept != nil {
		q.Readable = []warmpath.Readable{{Worker: p.kept.worker.ID, Tokens: len(p.kept.tokens)}}
	}
}

// keepTurn remembers what the decode worker keeps of its answer.
func (l *legs) keepTurn(answer []byte, now time.Time) {
	q := &l.x.prepared.route
	if len(q.Features) > 0 || l.x.prepared.read.MixedScopes {
		return
	}
	k, ok := l.connector.Kept(answer, l.pair.Chat)
	if size := l.d.Worker.Facts.BlockSize; !ok || size <= 0 || k.Blocks*size < len(k.Tokens) {
		return // an engine that is to read more blocks than there are dies
	}
	l.x.g.turns.keep(&keptTurn{
		worker: l.d.Worker, rank: l.d.Rank, model: q.Model, salt: q.Salt, extra: q.Extra, tenant: q.Tenant,
		tokens: slices.Clip(k.Tokens), params: slices.Clone(k.Params), since: now, until: now.Add(k.Lasts),
	}, now)
}

// takeTurn takes the kept turn of the request, and returns the body of the prefill leg with the fields by which the
// worker reads its blocks. If the decision does not say so, it only releases them. It returns nil if there is no turn.
func (l *legs) takeTurn(body []byte) (with []byte, turn *keptTurn, reads bool) {
	x, t, d := l.x, l.x.prepared.kept, l.d.Prefill
	x.prepared.kept, x.prepared.route.Readable = nil, nil
	now, snap := time.Now(), x.g.Fleet.Snapshot()
	if t == nil || t.worker.ID == d.Worker.ID || !d.Worker.Facts.Transfer.Pairs(&t.worker.Facts.Transfer) {
		return nil, nil, false
	}
	// A release needs the same connection between the engines as a read. A pair that is left alone gets neither.
	if link := snap.Link(t.worker, d.Worker); !link.Rested(now.UnixNano()) || !x.g.turns.take(t) || !now.Before(t.until) || t.gone(snap) {
		return nil, nil, false
	}
	pair := &connector.Pair{
		RequestID: l.pair.RequestID, Room: l.pair.Room, Batch: 1, Chat: l.pair.Chat, Decode: l.pair.Prefill,
		Prefill: endAt(t.worker, t.rank),
	}
	write := l.connector.AppendRelease
	if reads = d.Fetched > 0 && d.Source != nil && d.Source.ID == t.worker.ID; reads {
		write = l.connector.AppendFetch
	}
	with, err := write(nil, body, pair, t.params)
	if err != nil {
		return nil, nil, false
	}
	return with, t, reads
}

// prefillTurn sends the prefill leg of a request that continues a kept turn. If its worker cannot read the blocks, the
// leg is sent again without them.
func (l *legs) prefillTurn(ctx context.Context, body []byte) (result proxy.Result, sent bool) {
	with, turn, reads := l.takeTurn(body)
	if turn == nil {
		return result, false
	}
	x, g, to := l.x, l.x.g, l.d.Prefill.Worker
	result = l.sendPrefill(ctx, with)
	switch {
	case result.Class == proxy.Success && l.continues(turn):
		if reads {
			x.rec.FetchedTokens, x.rec.FetchedFrom = l.d.Prefill.Fetched, turn.worker.URL
			g.Telemetry.Fetched(l.d.Prefill.Fetched)
			g.Fleet.Transferred(turn.worker, to, 0, 0)
		}
		return result, true
	case result.Class == proxy.Success && reads:
		err := fmt.Errorf("%s computed another prompt than the one that begins with the blocks of %s", to.URL, turn.worker.URL)
		return proxy.Result{Class: proxy.Useless, Retryable: true, Sent: result.Sent, Status: result.Status, Err: api.WorkerUseless(err)}, true
	case result.Class == proxy.Success:
		return result, true
	case result.Untaken:
		g.turns.keep(turn, time.Now()) // nobody has read or released it
		return result, true
	case ctx.Err() != nil, result.Status < 500 && result.Class != proxy.HeaderTimeout, !l.prefillLives():
		// It is not the read that failed.
		return result, true
	}
	x.rec.Failed = append(x.rec.Failed, to.URL+": "+redacted(describe(&result, to.URL), x.r)+", with KV blocks of "+turn.worker.URL)
	l.answer = capture{}
	if result = l.sendPrefill(ctx, body); result.Class == proxy.Success { // otherwise the prompt or the worker is at fault
		g.turns.unreadable(turn)
		g.Telemetry.LegFailed(fleet.LegPrefill.String(), telemetry.PhaseTransfer)
		g.Fleet.TransferFailed(turn.worker, to, time.Now().UnixNano())
	}
	return result, true
}

// continues reports whether the prompt that the prefill worker computed begins with a turn. An answer without the ids
// of the prompt does not deny it.
func (l *legs) continues(t *keptTurn) bool {
	ids, ok := l.connector.PromptTokens(l.answer.body, l.pair.Chat)
	return !ok || len(ids) >= len(t.tokens) && slices.Equal(ids[:len(t.tokens)], t.tokens)
}

// withoutIDs returns an answer without the ids that only the router asked for.
func (l *legs) withoutIDs(answer []byte) []byte {
	if string(members(l.x.prepared.body)["return_token_ids"]) == "true" {
		return answer
	}
	null := []byte("null")
	m := members(answer)
	first := []api.Edit{{Name: "token_ids", Value: null}}
	var edits []api.Edit
	if l.pair.Chat {
		edits = append(edits, api.Edit{Name: "prompt_token_ids", Value: null})
	} else {
		first = append(first, api.Edit{Name: "prompt_token_ids", Value: null})
	}
	if len(m["choices"]) == 0 {
		return answer
	}
	return api.AppendEdited(nil, answer, append(edits, api.Edit{Name: "choices", Value: withFirst(m["choices"], first...)})...)
}
