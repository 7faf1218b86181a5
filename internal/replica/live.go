package replica

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/warmpath/warmpath/internal/tenant"
)

// look looks for what did not come.
func (s *Sync) look(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.survive()
	s.receiver.look(now)
}

// look drops dead peers, asks again, and adds requests again whose worker was not known. Callers hold s.mu.
func (r *receiver) look(now time.Time) {
	s := r.s
	r.excuse(now)
	s.lines.report(s.parts.Log, now)
	for _, p := range s.peers {
		if now.Sub(p.heard)-p.excused >= deadAfter {
			r.drop(p, fmt.Sprintf("nothing was heard of it for %v", deadAfter))
			continue
		}
		r.retry(p, now)
		r.warnUnknown(p, now)
		r.countKeys(p)
		r.ask(p, now)
	}
}

// excuse notes for each peer how long this process stood still since the peer's last packet. It could not hear the peer
// then, and what the peer sent may not be read yet. A stall below lookInterval is normal on a busy machine, and harms
// nobody. Callers hold s.mu.
func (r *receiver) excuse(now time.Time) {
	late := now.Sub(r.looked) - lookInterval
	r.looked = now
	if late < lookInterval {
		return
	}
	for _, p := range r.s.peers {
		// A peer whose packet was read after the stall needs no excuse for the time before it.
		p.excused = min(p.excused+late, max(now.Sub(p.heard), 0))
	}
}

// countKeys counts the requests of p that lost their keys. Callers hold s.mu.
func (r *receiver) countKeys(p *peer) {
	n := p.placements.KeysDropped()
	r.s.drop(dropMemory, n-p.keysDropped)
	p.keysDropped = n
}

// drop drops a peer and its load. Callers hold s.mu.
func (r *receiver) drop(p *peer, why string) {
	s := r.s
	s.lines.log(s.parts.Log, slog.LevelInfo, s.cfg.lineRouter(), "another router is gone, and its load is dropped", "router", p.heartbeat.name, "why", why, "requests", p.placements.Len())
	s.forget(p)
	if len(s.gone) >= 4*maxPeers {
		for id := range s.gone { // any: the map is full of routers that never come back
			delete(s.gone, id)
			break
		}
	}
	s.gone[p.id] = goneRouter{started: p.started, number: p.number, direct: p.direct, heard: p.heard}
}

// forget removes a peer. Callers hold s.mu.
func (s *Sync) forget(p *peer) {
	delete(s.peers, p.id)
	p.forgetAll()
	s.number()
	now := time.Now().UnixNano()
	s.receiver.countKeys(p)
	for {
		// Without a request, Close forgets what is expected of the peer. If a policy panics, the request over which it
		// panicked has ended, and the others have not.
		before := p.placements.Len()
		s.end(p, now)
		if left := p.placements.Len(); left == 0 || left >= before {
			break
		}
	}
	for name, t := range p.tenants {
		s.parts.Tenants.SpentElsewhere(name, tenant.Spent{Active: -t.active}, now)
	}
}

// end ends the requests of a peer, up to the first over which a policy panics.
func (s *Sync) end(p *peer, now int64) {
	defer s.survive()
	p.placements.Close(now)
}

// number tells the router its place among the live routers, in the order of their ids. Callers hold s.mu.
func (s *Sync) number() {
	if s.parts.SetReplicas == nil {
		return
	}
	own := 0
	for id := range s.peers {
		if id < s.id {
			own++
		}
	}
	s.parts.SetReplicas(own, 1+len(s.peers))
}

// dropAll drops all peers, when this router stops.
func (s *Sync) dropAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	for _, p := range s.peers {
		s.forget(p)
	}
}
