package replica

import (
	"log/slog"
	"time"
)

// unknownAfter is how long a peer's requests are for workers that this router does not know before the log says so.
// Routers that find workers by themselves do not find them at the same moment.
const unknownAfter = 10 * time.Second

// unknown is since when a peer has requests under way for workers that this router does not know.
type unknown struct {
	since  time.Time // zero: it has none
	warned bool
}

// warnUnknown warns once if p has had requests for unknown workers for a while: the routers may name the same workers
// differently, and then share nothing. Callers hold s.mu.
func (r *receiver) warnUnknown(p *peer, now time.Time) {
	oldest := p.refused.order.Front()
	switch u := &p.unknown; {
	case oldest == nil:
		*u = unknown{}
		return
	case u.since.IsZero():
		u.since = now
		return
	case u.warned || now.Sub(u.since) < unknownAfter:
		return
	}
	c := content{data: oldest.Value.(*waitingAdd).content}
	if c.placement(&r.placement); c.err != nil {
		return
	}
	if _, known := r.s.parts.Fleet.Find(r.placement.URL); known {
		return // the worker has not answered here yet
	}
	p.unknown.warned = r.s.lines.log(r.s.parts.Log, slog.LevelWarn, lineUnknown, "requests of another router are for a worker that this router does not know: they do not count here",
		"router", p.heartbeat.name, "worker", label(r.placement.URL), "requests", p.refused.count(),
		"advice", "give all routers the same URLs of workers; if they serve different workers, give them different groups (sync.group)")
}
