package replica

import (
	"cmp"
	"slices"
	"strconv"
	"time"
)

// Status is the state of the sharing of requests, as GET /admin/replicas shows it.
type Status struct {
	Mode  string `json:"mode"` // nats, embedded, or off
	Group string `json:"group"`
	ID    string `json:"id"` // this router's id among the others; a restart makes a new one
	Name  string `json:"name"`
	// Connected: NATS is connected, or the embedded server is connected to another router's. Otherwise the router serves
	// alone.
	Connected bool `json:"connected"`
	Signed    bool `json:"signed"` // a key is set
	Requests  int  `json:"requests"`
	// LastError is why the router serves alone, or if it is connected, why NATS does not pass on all messages.
	LastError string       `json:"last_error,omitempty"`
	ErrorAt   *time.Time   `json:"last_error_at,omitempty"`
	Peers     []PeerStatus `json:"peers"`
	Counts    Traffic      `json:"counts"`
}

// PeerStatus is one other router.
type PeerStatus struct {
	ID       string `json:"id"`
	Name     string `json:"name"`
	Admin    string `json:"admin,omitempty"`
	Version  string `json:"version,omitempty"`
	Requests int    `json:"requests"` // its requests under way that this router follows
	Told     int    `json:"told"`     // its requests under way, as its last heartbeat said
	Refused  int    `json:"refused"`  // those of them whose worker this router does not know
	// Forgotten counts its requests that were forgotten here before their end, because it has too many under way.
	Forgotten uint64 `json:"forgotten"`
	Whole     bool   `json:"whole"` // this router's view of its requests equalled its own, at its last packet
	// HeartbeatAge is the time since its last heartbeat. Delay is the mean time that its messages take: half of a round
	// trip; 0 is not known.
	HeartbeatAge float64 `json:"heartbeat_age_seconds"`
	Delay        float64 `json:"delay_seconds"`
}

// Traffic is what was sent and received since the start.
type Traffic struct {
	Sent          uint64            `json:"sent"`
	SentBytes     uint64            `json:"sent_bytes"`
	Received      uint64            `json:"received"`
	ReceivedBytes uint64            `json:"received_bytes"`
	Failed        uint64            `json:"failed"` // packets that NATS did not take
	Asks          uint64            `json:"asks"`   // for all requests of a peer
	Answers       uint64            `json:"answers"`
	Repairs       uint64            `json:"repairs"` // answers that were applied
	Connects      uint64            `json:"connects"`
	Dropped       map[string]uint64 `json:"dropped"` // by reason
}

// Status returns the present state.
func (s *Sync) Status() Status {
	out := Status{Mode: s.cfg.mode(), Group: s.cfg.Group, ID: idText(s.id), Name: s.parts.Name, Connected: s.link.connected(),
		Signed: s.cfg.Key != "", Peers: []PeerStatus{}, Counts: s.countsNow()}
	out.Requests, _, _ = s.out.counts()
	if l, ok := s.link.(*natsLink); ok {
		e := l.refused.Load()
		if !out.Connected {
			e = l.problem()
		}
		if e != nil {
			out.LastError, out.ErrorAt = e.text, &e.at
		}
	}
	now := time.Now()
	s.mu.Lock()
	for _, p := range s.peers {
		out.Peers = append(out.Peers, PeerStatus{ID: idText(p.id), Name: cmp.Or(p.heartbeat.name, idText(p.id)), Admin: p.heartbeat.admin,
			Version: p.heartbeat.version, Requests: len(p.underWay), Told: p.heartbeat.requests, Refused: p.refused.count(), Forgotten: p.placements.Forgotten(), Whole: !p.differs,
			HeartbeatAge: now.Sub(p.beat).Seconds(), Delay: p.delay.Seconds()})
	}
	s.mu.Unlock()
	slices.SortFunc(out.Peers, func(a, b PeerStatus) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID)) })
	return out
}

func idText(id uint64) string { return strconv.FormatUint(id, 16) }

func (s *Sync) countsNow() Traffic {
	c := &s.counts
	out := Traffic{Sent: c.sent.Load(), SentBytes: c.sentBytes.Load(), Received: c.received.Load(), ReceivedBytes: c.receivedBytes.Load(),
		Failed: c.failed.Load(), Asks: c.asks.Load(), Answers: c.answers.Load(), Repairs: c.repairs.Load(), Connects: c.reconnects.Load(),
		Dropped: map[string]uint64{}}
	for i, why := range reasons {
		out.Dropped[string(why)] = c.dropped[i].Load()
	}
	_, queue, untold := s.out.counts()
	out.Dropped[string(dropQueue)] += queue
	out.Dropped[string(dropTooMany)] += untold
	return out
}
