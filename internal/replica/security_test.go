package replica

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/test/testenv"
)

// node starts an embedded server at a free port of the loopback interface.
func node(t *testing.T, log *slog.Logger, change func(*Config)) *embedded {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Embedded, cfg.Listen = true, "127.0.0.1:0"
	change(&cfg)
	e, err := startEmbedded(&cfg, random(), log, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.stop)
	return e
}

// accepts reports whether the server's listener for clients takes a client. An error other than a refusal fails the
// test.
func (e *embedded) accepts(t *testing.T, options ...nats.Option) bool {
	t.Helper()
	conn, err := nats.Connect("nats://"+e.server.Addr().String(), append(options, nats.Timeout(time.Minute))...)
	if err != nil {
		if !errors.Is(err, nats.ErrAuthorization) {
			t.Fatal(err)
		}
		return false
	}
	conn.Close()
	return true
}

// Clients of sync.client_listen log in as the routers do. The listener that nobody asked for takes no client.
func TestClientsOfTheEmbeddedServerLogIn(t *testing.T) {
	secret := func(c *Config) { c.User, c.Password = "u", "a password" }
	clients := func(c *Config) { c.ClientListen = "127.0.0.1:0" }
	both := func(c *Config) { secret(c); clients(c) }
	for _, test := range []struct {
		name                  string
		change                func(*Config)
		without, wrong, right bool // whether a client without a login, with a wrong password, and with sync's is taken
	}{
		{"no listener for clients", func(*Config) {}, false, false, false},
		{"no listener for clients, and a password", secret, false, false, false},
		{"a listener for clients", clients, true, true, true},
		{"a listener for clients, and a password", both, false, false, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := node(t, discard, test.change)
			for _, client := range []struct {
				login string
				want  bool
				as    []nats.Option
			}{
				{"none", test.without, nil},
				{"a wrong password", test.wrong, []nats.Option{nats.UserInfo("u", "another password")}},
				{"sync's", test.right, []nats.Option{nats.UserInfo("u", "a password")}},
			} {
				if got := e.accepts(t, client.as...); got != client.want {
					t.Errorf("a client with the login %s is taken: %v", client.login, got)
				}
			}
			if conn, err := nats.Connect("", nats.InProcessServer(e.server), e.login()); err != nil {
				t.Errorf("the router itself: %v", err)
			} else {
				conn.Close()
			}
		})
	}
}

// With the files of sync.tls, a router's server and a client of NATS need a certificate of the authority.
func TestAnEmbeddedServerAsksForACertificate(t *testing.T) {
	cert, key := testenv.Certificate(t)
	strangeCert, strangeKey := testenv.Certificate(t)
	e := node(t, discard, func(c *Config) {
		c.ClientListen, c.TLS = "127.0.0.1:0", network.PeerTLS{CAFile: cert, CertFile: cert, KeyFile: key}
	})
	listeners := map[string]string{"routes": e.server.ClusterAddr().String(), "clients": e.server.Addr().String()}
	for name, test := range map[string]struct {
		files network.PeerTLS
		taken bool
	}{
		"its own":              {network.PeerTLS{CAFile: cert, CertFile: cert, KeyFile: key}, true},
		"none":                 {network.PeerTLS{CAFile: cert}, false},
		"of another authority": {network.PeerTLS{CAFile: cert, CertFile: strangeCert, KeyFile: strangeKey}, false},
	} {
		files, err := test.files.Client()
		if err != nil {
			t.Fatal(err)
		}
		connect := map[string]func() error{
			"routes": func() error {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				_, err := serverAt(ctx, listeners["routes"], files)
				return err
			},
			"clients": func() error {
				conn, err := nats.Connect("tls://"+listeners["clients"], nats.Secure(files), nats.Timeout(10*time.Second))
				if err == nil {
					conn.Close()
				}
				return err
			},
		}
		for listener, try := range connect {
			// A handshake on a busy machine may take longer than it may: that says nothing.
			testenv.Until(t, "the listener for "+listener+" answers who has the certificate: "+name, func() bool {
				err := try()
				if err == nil && !test.taken {
					t.Fatalf("the listener for %s takes who has the certificate: %s", listener, name)
				}
				return err == nil || !test.taken && strings.Contains(err.Error(), "tls:")
			})
		}
	}
}

// Without a key anybody can tell an address, and this router shows its admin key to whom it asks.
func TestWithoutAKeyThereAreNoAddresses(t *testing.T) {
	for key, want := range map[string][]string{"": nil, strings.Repeat("k", 32): {"http://10.0.0.7:9090"}} {
		synctest.Test(t, func(t *testing.T) {
			b, cfg := newBus(1), DefaultConfig()
			cfg.Key = key
			one, two := b.join(t, cfg, 1, nil), b.join(t, cfg, 1, nil)
			for _, m := range []*member{one, two} {
				m.sync.SetAdmin("10.0.0.7:9090", false)
				wake(m.sync.changes)
			}
			testenv.Pass(time.Second)
			if got := two.sync.Status().Peers; len(got) != 1 || got[0].Admin != "http://10.0.0.7:9090" {
				t.Fatalf("the address is not told: %+v", got)
			}
			if got := two.sync.Admins(); !slices.Equal(got, want) {
				t.Errorf("with a key of %d bytes the addresses are %q", len(key), got)
			}
		})
	}
}

// The embedded server's log has the URLs of routes, with the password.
func TestTheLogOfTheEmbeddedServerHasNoPassword(t *testing.T) {
	book, _ := logged(slog.LevelDebug)
	log := slog.New(slog.NewTextHandler(book, &slog.HandlerOptions{Level: slog.LevelDebug}))
	other := node(t, discard, func(c *Config) { c.User, c.Password = "u", "another word" })
	e := node(t, log, func(c *Config) {
		c.User, c.Password = "u", "secret@/: word"
		c.Routes = []string{"nats-route://" + other.server.ClusterAddr().String()}
	})
	testenv.Until(t, "the server names the route", func() bool {
		e.connectMissing(t.Context())
		return len(book.lines("nats-route://[redacted]@")) > 0
	})
	own := &serverLog{log: log, served: func(string) {}, blank: (&Config{}).withoutSecrets}
	own.Fatalf("cannot listen for %s", "nats-route://u:secret@127.0.0.1:4248")
	if why := own.fatal.Load(); why == nil || strings.Contains(*why, "secret") {
		t.Errorf("the reason why the server does not start is %q", *why)
	}
	if found := book.lines("secret"); len(found) > 0 {
		t.Errorf("the log has the password: %q", found)
	}
}
