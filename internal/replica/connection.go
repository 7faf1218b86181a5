package replica

import (
	"fmt"
	"log/slog"
	"time"
)

// aloneAfter is how long there is no connection before the log says so. Servers that start together need some 600 ms to
// find each other.
const aloneAfter = time.Second

// connection notes when the connection to the other routers comes and goes, and says so in the log. It belongs to the
// goroutine of Sync.share. Callers of its methods do not hold Sync.mu.
type connection struct {
	s        *Sync
	up       bool
	seen     bool      // up is known
	alone    time.Time // since when there is no connection
	warned   bool      // the log says so
	warnedAt time.Time
	advice   string // that the log gave
}

// changed notes that the connection may have changed. It reports whether it has come about.
func (c *connection) changed() bool {
	s := c.s
	up := s.link.connected()
	if c.seen && up == c.up {
		return false
	}
	c.up, c.seen = up, true
	if !up {
		c.alone, c.warned = time.Now(), false // see warnAlone
		return false
	}
	s.counts.reconnects.Add(1)
	closeOnce(s.joined)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.peers {
		p.differs = true
	}
	s.logConnected()
	return true
}

// logConnected logs that there is a connection. Whether there are other routers, and understand this one, is not known
// yet. Callers hold s.mu.
func (s *Sync) logConnected() {
	text := "connected to NATS: waiting for other routers"
	if n := s.heard(); n > 0 {
		text = fmt.Sprintf("connected to NATS: sharing requests with %d other routers", n)
	}
	s.lines.log(s.parts.Log, slog.LevelInfo, lineConnection, text, "sync", s.cfg.mode(), "group", s.cfg.Group, "signed", s.cfg.Key != "")
}

// logFirst logs that requests are shared, if one other router is heard. Callers hold s.mu.
func (s *Sync) logFirst() {
	if s.heard() == 1 {
		s.lines.log(s.parts.Log, slog.LevelInfo, lineRouter, "sharing requests with 1 other router", "sync", s.cfg.mode(), "group", s.cfg.Group, "signed", s.cfg.Key != "")
	}
}

// heard returns the number of routers that have told who they are. Callers hold s.mu.
func (s *Sync) heard() (n int) {
	for _, p := range s.peers {
		if p.heartbeat != (heartbeat{}) {
			n++
		}
	}
	return n
}

// warnAlone logs once why there is no connection, and again when there is another reason. It logs at most every ten
// seconds, also of a connection that comes and goes.
func (c *connection) warnAlone(now time.Time) {
	if c.up || now.Sub(c.alone) < aloneAfter {
		return
	}
	f := c.s.link.fault()
	if now.Sub(c.warnedAt) < 10*aloneAfter || c.warned && f.advice == c.advice {
		return
	}
	c.warned, c.warnedAt, c.advice = true, now, f.advice
	to := "NATS"
	if c.s.cfg.Embedded {
		to = "another router"
	}
	c.s.parts.Log.Warn("no connection to "+to+": this router serves alone, and tries to connect again",
		"sync", c.s.cfg.mode(), "servers", f.servers, "error", f.problem, "advice", f.advice)
}
