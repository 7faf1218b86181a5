package replica

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/warmpath/warmpath/test/testenv"
)

// logbook has the lines of a log.
type logbook struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (b *logbook) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(data)
}

// lines returns the lines that contain all of these texts.
func (b *logbook) lines(texts ...string) (found []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for line := range strings.Lines(b.text.String()) {
		if all := func() bool {
			for _, text := range texts {
				if !strings.Contains(line, text) {
					return false
				}
			}
			return true
		}(); all {
			found = append(found, line)
		}
	}
	return found
}

// logged makes a Sync write its log into the logbook that is returned. It is called before the Sync runs.
func logged(level slog.Level) (*logbook, func(*Sync)) {
	b := &logbook{}
	log := slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: level}))
	return b, func(s *Sync) {
		s.parts.Log = log
		s.link.(*natsLink).log = log
	}
}

// One of three routers has another password. The other two keep their connection while its server refuses the route.
func TestARouterThatRefusesARouteDisturbsNoOther(t *testing.T) {
	var addresses []string
	for range 3 {
		addresses = append(addresses, fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)))
	}
	join := func(i int, password string, before func(*Sync)) *member {
		cfg := DefaultConfig()
		cfg.Embedded, cfg.Listen, cfg.User, cfg.Password = true, addresses[i], "u", password
		for _, a := range addresses {
			cfg.Routes = append(cfg.Routes, "nats-route://"+a)
		}
		return connectWith(t, cfg, before)
	}
	stranger := join(0, "another password", func(*Sync) {})
	book, log := logged(slog.LevelDebug)
	one, two := join(1, "a password", log), join(2, "a password", func(*Sync) {})
	testenv.Until(t, "two routers know each other", func() bool { return len(one.sync.Status().Peers) == 1 && len(two.sync.Status().Peers) == 1 })
	testenv.Until(t, "the server has read its options again", func() bool { return len(book.lines("Reloaded server configuration")) > 0 })
	// At the start both servers connect to each other, and one of the two routes closes.
	connects, before := one.sync.Status().Counts.Connects, 0
	testenv.Until(t, "the third router refuses three routes in a row, and the connection stays", func() bool {
		refused := len(book.lines("Route Error 'Authorization Violation'"))
		if now := one.sync.Status().Counts.Connects; now != connects || !one.sync.Status().Connected || before == 0 {
			connects, before = now, refused
		}
		return before > 0 && refused >= before+3
	})
	if n := len(book.lines("Client connection closed")); n != 0 {
		t.Errorf("the server closed the connection of its own router %d times", n)
	}
	share(t, one, two)
	if n := len(stranger.sync.Status().Peers); n != 0 {
		t.Errorf("the router with another password has %d peers", n)
	}
}

// The server itself tries again once a second. It is not made to read its options again for ever.
func TestAServerIsHurriedOnlyToNewServers(t *testing.T) {
	var nodes []*embedded
	for i := range 2 {
		cfg := DefaultConfig()
		cfg.Embedded, cfg.Listen, cfg.User, cfg.Password = true, "127.0.0.1:0", "u", fmt.Sprint("the password of router ", i)
		if i == 1 {
			cfg.Routes = []string{"nats-route://" + nodes[0].server.ClusterAddr().String()}
		}
		node, err := startEmbedded(&cfg, uint64(i), discard, func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(node.stop)
		nodes = append(nodes, node)
	}
	node := nodes[1]
	testenv.Until(t, "the server is hurried as often as it may be", func() bool {
		node.connectMissing(t.Context())
		return node.hurried[0] == mostHurried
	})
	for range 5 {
		before := node.options.Routes[0]
		all := node.connectMissing(t.Context())
		if node.hurried[0] == 0 {
			continue // the other server was not reached in time
		}
		if node.options.Routes[0] != before || !all {
			t.Fatal("the server is hurried again")
		}
	}
}

// A router that cannot connect says after a second which server, why, and what to do. It says so once.
func TestTheLogSaysWhyThereIsNoConnection(t *testing.T) {
	cert, _ := testenv.Certificate(t)
	secret := func(o *server.Options) { o.Username, o.Password = "u", "the right password" }
	for name, test := range map[string]struct {
		server func(*server.Options)
		change func(*Config)
		want   []string
	}{
		"a wrong password": {secret, func(c *Config) { c.User, c.Password = "u", "a wrong password" },
			[]string{"Authorization Violation", "the server refuses sync.user with its password"}},
		"a wrong token": {func(o *server.Options) { o.Authorization = "the right token" }, func(c *Config) { c.Token = "a wrong token" },
			[]string{"Authorization Violation", "the server refuses the token of sync.token_file"}},
		"no password": {secret, func(*Config) {}, []string{"Authorization Violation", "sync.password_file"}},
		"a server without TLS": {nil, func(c *Config) { c.TLS.CAFile = cert },
			[]string{"secure connection not available", "turn on TLS at the server"}},
		"nobody": {nil, func(c *Config) { c.NATS = "nats://u:p@127.0.0.1:1" },
			[]string{"connection refused", "nats://[redacted]@127.0.0.1:1", "does NATS run there"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := DefaultConfig()
			cfg.NATS = natsServer(t, 0, test.server).ClientURL()
			test.change(&cfg)
			book, log := logged(slog.LevelInfo)
			began := time.Now()
			m := connectWith(t, cfg, log)
			testenv.Until(t, "the log says that the router is alone", func() bool { return len(book.lines("level=WARN", "serves alone")) > 0 })
			if took := time.Since(began); took < aloneAfter {
				t.Errorf("a warning after %v", took)
			}
			testenv.Until(t, "the log says why", func() bool {
				return len(book.lines(append([]string{"level=WARN", "serves alone"}, test.want...)...)) > 0
			})
			m.stop()
			if warned := book.lines("level=WARN"); len(warned) > 2 { // a busy machine has no reason yet after a second
				t.Errorf("%d warnings: %q", len(warned), warned)
			}
			if len(book.lines("wrong password"))+len(book.lines("wrong token")) > 0 {
				t.Error("the log has the secret")
			}
		})
	}
}

// A user of NATS that may not publish connects all the same.
func TestTheLogSaysThatNATSRefusesMessages(t *testing.T) {
	none := &server.SubjectPermission{Allow: []string{"other"}}
	cfg := DefaultConfig()
	cfg.NATS = natsServer(t, 0, func(o *server.Options) {
		o.Users = []*server.User{{Username: "u", Password: "a password", Permissions: &server.Permissions{Publish: none, Subscribe: none}}}
	}).ClientURL()
	cfg.User, cfg.Password = "u", "a password"
	book, log := logged(slog.LevelInfo)
	m := connectWith(t, cfg, log)
	testenv.Until(t, "the log says what is missing", func() bool {
		return len(book.lines("level=WARN", "NATS refuses messages", "warmpath.sync.", "the right to publish and to subscribe at warmpath.sync.>")) > 0
	})
	testenv.Until(t, "the status says so, too", func() bool {
		now := m.sync.Status()
		return now.Connected && strings.Contains(now.LastError, "Permissions Violation") && now.ErrorAt != nil
	})
}

// A server with a small max_payload does not take the message of a long prompt.
func TestTheLogSaysThatTheServerTakesNoLongMessages(t *testing.T) {
	for payload, connects := range map[int32]bool{4096: true, maxPacket - 1: true, maxPacket: false, 1 << 20: false} {
		t.Run(fmt.Sprint(payload), func(t *testing.T) {
			t.Parallel()
			cfg := DefaultConfig()
			cfg.NATS = natsServer(t, 0, func(o *server.Options) { o.MaxPayload = payload }).ClientURL()
			book, log := logged(slog.LevelInfo)
			m, other := connectWith(t, cfg, log), connect(t, cfg)
			testenv.Until(t, "they know each other", func() bool { return len(m.sync.Status().Peers) == 1 && len(other.sync.Status().Peers) == 1 })
			testenv.Until(t, "the log and the status say so if messages are refused", func() bool {
				now := m.sync.Status()
				return (len(book.lines("level=WARN", "NATS refuses messages", fmt.Sprint("max_payload is ", payload), "set max_payload")) == 1) == connects &&
					strings.Contains(now.LastError, "max_payload") == connects
			})
			if payload == 4096 {
				d := m.route(1, 16*1024, "")
				testenv.Until(t, "the status says how long the message is", func() bool {
					return strings.HasPrefix(m.sync.Status().LastError, "a message of ")
				})
				done(d)
			}
		})
	}
	t.Run("later", func(t *testing.T) { // without the look at the connection, a message says it
		cfg := DefaultConfig()
		cfg.NATS = natsServer(t, 0, func(o *server.Options) { o.MaxPayload = 4096 }).ClientURL()
		book, log := logged(slog.LevelInfo)
		m := connectWith(t, cfg, log)
		testenv.Until(t, "it is connected", func() bool { return m.sync.Status().LastError != "" })
		l := m.sync.link.(*natsLink)
		l.lines.mu.Lock()
		clear(l.lines.kinds) // as a minute later
		l.lines.mu.Unlock()
		if err := l.publish(0, make([]byte, 5000)); err == nil || len(book.lines("level=WARN", "a message of 5000 bytes")) != 1 {
			t.Errorf("a message that is too long: %v", err)
		}
	})
}

// Routers with embedded servers that refuse each other say so, and what to set. Each row has what the router with the
// route logs.
func TestTheLogSaysWhyRoutesAreRefused(t *testing.T) {
	cert, key := testenv.Certificate(t)
	otherCert, otherKey := testenv.Certificate(t)
	files := func(cert, key string) func(*Config) {
		return func(c *Config) { c.TLS.CAFile, c.TLS.CertFile, c.TLS.KeyFile = cert, cert, key }
	}
	password := func(text string) func(*Config) { return func(c *Config) { c.User, c.Password = "u", text } }
	none := func(*Config) {}
	for name, test := range map[string]struct {
		one, two func(*Config)
		want     []string // in one warning of the router with the route
	}{
		"passwords":       {password("a password"), password("another password"), []string{"Authorization Violation", "the same sync.user"}},
		"no password":     {password("a password"), none, []string{"Authorization Violation", "the same sync.user"}},
		"groups":          {none, func(c *Config) { c.Group = "other" }, []string{"cluster name", "the same sync.group"}},
		"authorities":     {files(cert, key), files(otherCert, otherKey), []string{"failed to verify certificate", "sync.tls.cert_file"}},
		"TLS at the one":  {files(cert, key), none, []string{"serves alone", "asks for TLS", "sync.tls.cert_file"}},
		"TLS at the two":  {none, files(cert, key), []string{"tls: first record", "sync.tls.cert_file"}},
		"nobody is there": {none, func(c *Config) { c.Routes = []string{"nats-route://127.0.0.1:1"} }, []string{"serves alone", "127.0.0.1:1", "connection refused", "does another router run"}},
		"no routes":       {none, func(c *Config) { c.Routes = nil }, []string{"serves alone", "no other router has connected", "--sync-route"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var routes []string
			books := make([]*logbook, 2)
			for i, change := range []func(*Config){test.one, test.two} {
				cfg := DefaultConfig()
				cfg.Embedded, cfg.Listen, cfg.Routes = true, fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)), routes
				routes = []string{"nats-route://" + cfg.Listen}
				change(&cfg)
				var log func(*Sync)
				books[i], log = logged(slog.LevelInfo)
				m := connectWith(t, cfg, log)
				testenv.Until(t, "the server runs", func() bool { return m.sync.link.(*natsLink).node.Load() != nil })
			}
			defer func() {
				if t.Failed() {
					t.Log(books[0].lines("WARN"), books[1].lines("WARN"))
				}
			}()
			testenv.Until(t, "the log says why", func() bool {
				return len(books[1].lines(append([]string{"level=WARN"}, test.want...)...)) > 0
			})
			testenv.Until(t, "both say that they are alone", func() bool {
				return len(books[0].lines("level=WARN", "serves alone")) > 0 && len(books[1].lines("level=WARN", "serves alone")) > 0
			})
			for i, b := range books {
				if all := b.lines("level=WARN"); len(all) > 4 {
					t.Errorf("router %d warns %d times: %q", i, len(all), all)
				}
				if len(b.lines("another password")) > 0 {
					t.Error("the log has the password")
				}
			}
		})
	}
}

// Routers that start together log no warning, and one line about each other.
func TestAHealthyStartLogsNoWarning(t *testing.T) {
	var books []*logbook
	var all []*member
	var routes []string
	began := time.Now()
	for range 2 {
		cfg := DefaultConfig()
		cfg.Embedded, cfg.Listen, cfg.Routes = true, fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)), routes
		routes = append(routes, "nats-route://"+cfg.Listen)
		book, log := logged(slog.LevelInfo)
		books, all = append(books, book), append(all, connectWith(t, cfg, log))
	}
	testenv.Until(t, "they know each other", func() bool {
		return len(all[0].sync.Status().Peers) == 1 && len(all[1].sync.Status().Peers) == 1
	})
	testenv.Until(t, "they say so", func() bool {
		return len(books[0].lines("another router shares its requests", "routers=1")) == 1 && len(books[1].lines("another router shares its requests", "routers=1")) == 1
	})
	testenv.Until(t, "they are connected", func() bool {
		return all[0].sync.Status().Counts.Connects > 0 && all[1].sync.Status().Counts.Connects > 0
	})
	took := time.Since(began)
	for i, b := range books {
		if warned := b.lines("level=WARN"); len(warned) > 0 && took < aloneAfter {
			t.Errorf("router %d connected after %v, and warns: %q", i, took, warned)
		}
		said := b.lines("level=INFO")
		if took < aloneAfter && (len(said) != 2 || len(b.lines("listens for other routers")) != 1) {
			t.Errorf("router %d says more than that it listens, and that the other one shares its requests: %q", i, said)
		}
	}
}

func TestTheSameIsWarnedOfOnceAMinute(t *testing.T) {
	var w lines
	now := time.Now()
	for i, c := range []struct {
		kind  string
		after time.Duration
		want  bool
	}{{"a", 0, true}, {"b", 0, true}, {"a", warnInterval - 1, false}, {"a", warnInterval, true}, {"a", 2*warnInterval - 1, false}} {
		if got := w.due(once(c.kind), now.Add(c.after)); got != c.want {
			t.Errorf("warning %d: %v", i, got)
		}
	}
}
