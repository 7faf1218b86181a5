package fleet

import "sync/atomic"

// PeerLoad is the part of a holder's load that peers told of: other routers that tell this router of their requests
// (Work.Peer). The fields of [Load] with the same names include these figures.
type PeerLoad struct {
	Requests, Waiting, PrefillTokens int64
	Processed                        uint64
}

// Own returns l without the requests that peers told of. ContextBlocks, ContextTokens, OutputTokens, Turns and the
// predicted times still include them, because requests of several routers share blocks and time.
func (l Load) Own() Load {
	l.Requests -= l.Peers.Requests
	l.Waiting -= l.Peers.Waiting
	l.PrefillTokens -= l.Peers.PrefillTokens
	l.Processed -= l.Peers.Processed
	l.Peers = PeerLoad{}
	return l
}

// peers counts the requests of a ledger that peers told of. Its counts are changed under the ledger's mutex, and read
// without it.
type peers struct {
	requests, waiting, prefill atomic.Int64
	processed                  atomic.Uint64
	answers                    atomic.Pointer[answers] // nil: there are none
}

// answers says how many answers of peers' requests are under way, and how long all of them together. A peer does not
// tell how many tokens an answer has: the number is estimated from the time since its first token. An answers is
// immutable, so that readers see count and times that belong together.
type answers struct {
	count int64
	base  int64 // the time from which begun counts, Unix nanoseconds
	begun int64 // the sum of the times from base to the first tokens, in microseconds: nanoseconds would overflow
}

// add adds the figures to the load of a ledger.
func (p *peers) add(l *Load) {
	l.Peers = PeerLoad{
		Requests: p.requests.Load(), Waiting: p.waiting.Load(), PrefillTokens: p.prefill.Load(), Processed: p.processed.Load(),
	}
}

// wait counts, with by = 1, a prompt of a peer that waits to be computed. With by = -1 the prompt no longer waits.
func (p *peers) wait(r *Reservation, by int64) {
	p.waiting.Add(by)
	p.prefill.Add(by * int64(r.work.UncachedTokens))
}

// answer counts, with by = 1, an answer of a peer, whose first token came at r.first. With by = -1 the answer has
// ended.
func (p *peers) answer(r *Reservation, by int64) {
	next := answers{base: r.first}
	if old := p.answers.Load(); old != nil {
		next = *old
	}
	next.count += by
	next.begun += by * ((r.first - next.base) / 1000)
	if next.count == 0 {
		p.answers.Store(nil)
		return
	}
	p.answers.Store(&next)
}

// tokens estimates how many tokens all answers of peers have at now. step is the time of a pass in milliseconds: each
// pass gives each answer one token.
func (p *peers) tokens(now int64, step float64) int64 {
	a := p.answers.Load()
	if a == nil || step <= 0 {
		return 0
	}
	total := float64(a.count)*float64(now-a.base)/1e6 - float64(a.begun)/1e3
	return int64(max(total, 0) / step)
}

// own returns the number of this router's requests under way.
func (l *ledger) own() int64 { return l.requests.Load() - l.peers.requests.Load() }

// answered returns how many tokens all answers under way have at now: as reported for this router's requests, and
// estimated for those of peers. mu is held.
func (l *ledger) answered(now int64) int64 {
	own := l.output.Load()
	if l.peers.answers.Load() == nil {
		return own
	}
	t := l.timing()
	return own + l.peers.tokens(now, t.Step(l.passes.decoding, l.passes.context+own))
}

// told records that a peer told of the first token of its request r. mu is held.
func (l *ledger) told(r *Reservation, now int64) {
	if r.stage == stageRunning && r.unseen {
		l.computed(r)
		r.first, r.touched = now, now
	}
	if r.stage != stageWaiting {
		return
	}
	if l.queue.first != r {
		l.since.Store(now)
	}
	l.leaveQueue(r, now)
	l.blurred = true
	l.join(&r.work, now)
	r.stage, r.touched, r.first = stageRunning, now, now
	l.running.push(r)
	l.peers.answer(r, 1)
}

// passPeers records that the prompts of peers before r are computed, because r's first token has come: an engine
// computes prompts in order, and what the peers tell of them is still on its way. mu is held, and r is in stageWaiting.
func (l *ledger) passPeers(r *Reservation, now int64) {
	for x := l.queue.first; x != r; {
		next := x.next
		if x.work.Peer {
			l.told(x, now)
		}
		x = next
	}
}
