package replica

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// faultAge is how long the last error of an embedded server's routes is given as the reason. The server tries a
	// refused route again each second, so an older error is over.
	faultAge = 5 * time.Second
	// warnInterval is the least time between two warnings of one kind.
	warnInterval = time.Minute
)

// fault says why there is no connection.
type fault struct {
	servers string // that the router tries to reach
	problem string
	advice  string // what an operator can do
}

// fault returns why there is no connection.
func (l *natsLink) fault() fault {
	f := fault{servers: withoutUser(strings.Join(l.cfg.Servers(), ",")), problem: "no server has answered yet"}
	if l.cfg.Embedded && l.node.Load() != nil {
		f.servers = withoutUser(strings.Join(l.cfg.Routes, ","))
		f.problem = "no other router has connected"
	}
	if e := l.problem(); e != nil {
		f.problem = e.text
	}
	f.advice = l.cfg.advise(f.problem)
	return f
}

// problem returns the last error because of which there is no connection; nil: none is known.
func (l *natsLink) problem() *errorWithTime {
	last, node := l.last.Load(), l.node.Load()
	if node == nil || last != nil && time.Since(last.at) <= faultAge { // a refused route is tried again each second
		return last
	}
	return node.unreached.Load()
}

// advise returns what an operator can do about a problem with the connection.
func (c *Config) advise(problem string) string {
	has := func(texts ...string) bool {
		for _, text := range texts {
			if strings.Contains(strings.ToLower(problem), text) {
				return true
			}
		}
		return false
	}
	switch {
	case has("permission"):
		return fmt.Sprintf("give the user of NATS the right to publish and to subscribe at %s.sync.>", c.Group)
	case has("maximum payload"):
		return fmt.Sprintf("set max_payload of the NATS server to its default, 1MB: messages of routers have up to %d KiB, and a request whose message is too long is not shared", (maxPacket+1023)>>10)
	case has("cluster name"):
		return "set the same sync.group at all routers"
	case c.Embedded && has("authorization", "authentication"):
		return "set the same sync.user and sync.password_file, and the files of sync.tls, at all routers"
	case c.Embedded && has("asks for tls"):
		return "does a router have the address in sync.routes as its sync.listen? If so, set sync.tls.cert_file, key_file and ca_file at all routers"
	case c.Embedded && has("no nats server"):
		return "does a router have the address in sync.routes as its sync.listen?"
	case c.Embedded && has("tls:", "x509:"):
		return "set sync.tls.cert_file, key_file and ca_file at all routers, so that each trusts the certificates of the others"
	case c.Embedded && len(c.Routes) == 0:
		return "name another router in sync.routes (--sync-route), or this one there"
	case c.Embedded:
		return "does another router run, and can this machine reach its sync.listen at the address in sync.routes?"
	case has("route port"):
		return "an embedded server of another router listens there: use --sync-embedded and --sync-route instead of --sync-nats"
	case has("authorization", "authentication", "credentials", "nkey", "jwt") && c.login() != "":
		return "the server refuses " + c.login() + ": set what the server knows"
	case has("authorization", "authentication", "credentials", "nkey", "jwt"):
		return "set sync.user with sync.password_file, or sync.token_file, or sync.credentials_file, as the server asks for"
	case has("unknown authority", "failed to verify"):
		return "set sync.tls.ca_file to the authority of the server's certificate, and sync.tls.server_name to a name in it"
	case has("secure connection not available"):
		return "turn on TLS at the server, or write nats:// and set none of sync.tls"
	case has("connection reset", "eof", "broken pipe"):
		return "the server closes the connection: is it NATS, and what does its log say?"
	case has("tls:"):
		return "does the server ask for a certificate? Set sync.tls.cert_file and key_file"
	}
	return "does NATS run there, is the address of sync.nats right, and can this machine reach it?"
}

// login names the settings with which the router logs in to a given NATS server; "" is none.
func (c *Config) login() string {
	switch {
	case c.User != "":
		return "sync.user with its password"
	case c.Token != "":
		return "the token of sync.token_file or WARMPATH_SYNC_TOKEN"
	case c.CredentialsFile != "":
		return "the user of sync.credentials_file"
	}
	return ""
}

// happened notes an error of a connection that stays.
func (l *natsLink) happened(err error) {
	l.note(err)
	if !errors.Is(err, nats.ErrPermissionViolation) && !errors.Is(err, nats.ErrMaxPayload) {
		return
	}
	l.refused.Store(l.timed(err))
	advice := l.cfg.advise(err.Error())
	l.lines.log(l.log, slog.LevelWarn, once(advice), "NATS refuses messages for the other routers", "error", l.cfg.withoutSecrets(err.Error()), "advice", advice)
}

// served takes a line of the embedded server's log. If it says that this router and another one refuse each other, the
// router's log gets a warning.
func (l *natsLink) served(line string) {
	where, what, ok := strings.Cut(line, " - ")
	if !ok {
		return
	}
	if _, rest, more := strings.Cut(what, " - "); more { // the number of the connection
		what = rest
	}
	refused := strings.Contains(what, "Authorization Violation") || strings.HasPrefix(what, "authentication error") ||
		strings.Contains(what, "Rejecting connection, cluster name") ||
		strings.HasPrefix(what, "TLS route handshake error") && (strings.Contains(what, "tls:") || strings.Contains(what, "x509:"))
	if !refused {
		return
	}
	l.note(fmt.Errorf("%s: %s", where, what))
	advice := l.cfg.advise(what)
	l.lines.log(l.log, slog.LevelWarn, once(advice), "another router and this one cannot connect", "address", where, "error", what, "advice", advice)
}
