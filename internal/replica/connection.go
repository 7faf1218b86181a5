package replica

import (
	"fmt"
	"time"
)

// aloneAfter is how long there is no connection before the log says so. Servers that start together need some 600 ms to
// find each other.
const aloneAfter = time.Second

// shortLife is below what a connection stands in a network that works: a server that refuses a client does so earlier.
// After shortConnections of them in a row the log says so, and says no longer that there is a connection.
const shortLife, shortConnections = 5 * time.Second, 3

// connection notes when the connection to the other routers comes and goes, and says so in the log. It belongs to the
// goroutine of Sync.share. Callers of its methods do not hold Sync.mu.
type connection struct {
	s        *Sync
	up       bool
	seen     bool      // up is known
	since    time.Time // when the connection came about
	short    int       // connections in a row that broke within shortLife
	quiet    bool      // the log does not say that there is a connection, because the ones before were short
	alone    time.Time // since when there is no connection
	warned   bool      // the log says so, or that connections break
	lasts    bool      // the log says that there is none for aloneAfter
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
	now, was := time.Now(), c.up
	c.up, c.seen = up, true
	if !up {
		switch {
		case was && now.Sub(c.since) < shortLife:
			c.short++
		case was:
			c.short = 0
		}
		c.alone, c.warned, c.lasts = now, false, false
		c.warnAlone(now)
		return false
	}
	c.since = now
	s.counts.reconnects.Add(1)
	closeOnce(s.joined)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.peers {
		p.differs = true
	}
	if c.quiet = c.short >= shortConnections; !c.quiet && (!s.cfg.Embedded || c.warned) {
		// Without a warning before, the lines about the other routers say enough of a connection between embedded servers.
		s.logConnected()
	}
	return true
}

// look says in the log that there is no connection, or that there is one that stands at last.
func (c *connection) look(now time.Time) {
	c.warnAlone(now)
	if c.up && c.quiet && now.Sub(c.since) >= shortLife {
		c.short, c.quiet = 0, false
		c.s.mu.Lock()
		defer c.s.mu.Unlock()
		c.s.logConnected()
	}
}

// logConnected logs that there is a connection. Whether there are other routers, and understand this one, is not known
// yet. These lines need no bound of their own: shortConnections allows four in the time of shortLife. Callers hold
// s.mu.
func (s *Sync) logConnected() {
	text := "waiting for other routers"
	switch n := s.heard(); n {
	case 0:
	case 1:
		text = "sharing requests with 1 other router"
	default:
		text = fmt.Sprintf("sharing requests with %d other routers", n)
	}
	s.parts.Log.Info("connected to "+s.cfg.other()+": "+text,
		"sync", s.cfg.mode(), "group", s.cfg.Group, "signed", s.cfg.Key != "")
}

// other names what the router connects to.
func (c *Config) other() string {
	if c.Embedded {
		return "another router"
	}
	return "NATS"
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
// seconds, also of a connection that comes and goes, and once a minute of connections that break soon.
func (c *connection) warnAlone(now time.Time) {
	long := now.Sub(c.alone) >= aloneAfter
	if c.up || !long && c.short < shortConnections {
		return
	}
	gap := 10 * aloneAfter
	if !long {
		gap = warnInterval
	}
	f := c.s.link.fault()
	if now.Sub(c.warnedAt) < gap || c.warned && f.advice == c.advice && (c.lasts || !long) {
		return
	}
	c.warned, c.warnedAt, c.lasts, c.advice = true, now, long, f.advice
	to := c.s.cfg.other()
	text := "no connection to " + to + ": this router serves alone, and tries to connect again"
	if !long {
		text = "the connection to " + to + " breaks again and again: this router serves alone in between, and tries to connect again"
	}
	c.s.parts.Log.Warn(text, "sync", c.s.cfg.mode(), "servers", f.servers, "error", f.problem, "advice", f.advice)
}
