package replica

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
	"go.uber.org/goleak"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/test/testenv"
)

// connect starts a router that shares its requests over NATS as cfg says.
func connect(t *testing.T, cfg Config) *member {
	t.Helper()
	return connectWith(t, cfg, func(*Sync) {})
}

// connectWith is connect, and calls before with the Sync before it runs.
func connectWith(t *testing.T, cfg Config, before func(*Sync)) *member {
	t.Helper()
	m := &member{t: t, trust: fleet.TrustExact, fleet: fleet.New(fleet.Config{}), ended: make(chan error, 1)}
	var peer func() *warmpath.Peer
	m.sync = New(cfg, Parts{NewPeer: func() *warmpath.Peer { return peer() }, Fleet: m.fleet, Log: discard, Name: t.Name()})
	var err error
	m.router, err = warmpath.New(warmpath.Options{Fleet: m.fleet, Policy: policy.DefaultKVAware().Spec("kv_aware"), Observer: m.sync.Observer()})
	if err != nil {
		t.Fatal(err)
	}
	peer = m.router.NewPeer
	for i := range 2 {
		m.worker(i)
	}
	before(m.sync)
	ctx, cancel := context.WithCancel(context.Background())
	stopped := false
	m.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			if err := <-m.ended; err != nil {
				t.Error(err)
			}
		}
	}
	go func() { m.ended <- m.sync.Run(ctx) }() // ends with ctx; stop waits
	t.Cleanup(m.stop)
	return m
}

// natsServer starts a NATS server at a port; 0 is any.
func natsServer(t *testing.T, port int, change func(*server.Options)) *server.Server {
	t.Helper()
	if port == 0 {
		port = server.RANDOM_PORT
	}
	o := &server.Options{Host: "127.0.0.1", Port: port, NoSigs: true, NoLog: true}
	if change != nil {
		change(o)
	}
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the NATS server is not ready")
	}
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	return s
}

// share checks that both routers tell each other of requests.
func share(t *testing.T, one, two *member) {
	t.Helper()
	for i, m := range []*member{one, two} {
		d := m.route(1, 200, "")
		testenv.Until(t, fmt.Sprintf("both know the request of router %d", i), func() bool { return one.requests() == 1 && two.requests() == 1 })
		done(d)
		testenv.Until(t, fmt.Sprintf("both know the end of the request of router %d", i), func() bool { return one.requests() == 0 && two.requests() == 0 })
	}
}

func TestRoutersShareOverAGivenServer(t *testing.T) {
	defer goleak.VerifyNone(t)
	t.Run("", func(t *testing.T) {
		s := natsServer(t, 0, func(o *server.Options) { o.Username, o.Password = "u", "a password" })
		cfg := DefaultConfig()
		cfg.NATS, cfg.User, cfg.Password = s.ClientURL(), "u", "a password"
		one, two := connect(t, cfg), connect(t, cfg)
		testenv.Until(t, "they know each other", func() bool { return len(one.sync.Status().Peers) == 1 && len(two.sync.Status().Peers) == 1 })
		share(t, one, two)
		other := cfg
		other.Group = "another"
		three := connect(t, other)
		testenv.Until(t, "the third router is connected", func() bool { return three.sync.Status().Connected })
		share(t, one, two)
		if n := len(three.sync.Status().Peers); n != 0 {
			t.Errorf("a router of another group has %d peers", n)
		}
	})
}

// The router serves before NATS is there, while it is away, and after it came back.
func TestARouterServesWithoutNATS(t *testing.T) {
	defer goleak.VerifyNone(t)
	t.Run("", func(t *testing.T) {
		port := testenv.FreePort(t)
		cfg := DefaultConfig()
		cfg.NATS = fmt.Sprintf("nats://127.0.0.1:%d", port)
		one, two := connect(t, cfg), connect(t, cfg)
		for round := range 2 {
			d := one.route(round, 200, "")
			testenv.Until(t, "alone", func() bool {
				return !one.sync.Status().Connected && len(two.sync.Status().Peers) == 0 && two.requests() == 0
			})
			s := natsServer(t, port, nil)
			testenv.Until(t, "a request that began without NATS is known", func() bool { return two.requests() == 1 })
			done(d)
			share(t, one, two)
			s.Shutdown()
			s.WaitForShutdown()
		}
	})
}

func TestRoutersShareOverEmbeddedServers(t *testing.T) {
	defer goleak.VerifyNone(t)
	t.Run("", func(t *testing.T) {
		var routes []string
		var ports []int
		for range 3 {
			ports = append(ports, testenv.FreePort(t))
			routes = append(routes, fmt.Sprintf("nats-route://127.0.0.1:%d", ports[len(ports)-1]))
		}
		var all []*member
		for _, port := range ports {
			cfg := DefaultConfig()
			cfg.Embedded, cfg.Listen, cfg.Routes, cfg.User, cfg.Password = true, fmt.Sprintf("127.0.0.1:%d", port), routes, "u", "a password"
			all = append(all, connect(t, cfg))
		}
		for _, m := range all {
			testenv.Until(t, "all know each other", func() bool { return len(m.sync.Status().Peers) == 2 })
		}
		share(t, all[0], all[1])
		share(t, all[1], all[2])
		d := all[2].route(3, 100, "")
		testenv.Until(t, "the third router's request is known", func() bool { return all[0].requests() == 1 })
		done(d)
		all[2].stop()
		testenv.Until(t, "the third router is gone", func() bool { return len(all[0].sync.Status().Peers) == 1 })
		share(t, all[0], all[1])
	})
}

// A given server asks for TLS and a token. A router with another token, and one that does not trust the server, serve
// alone and say why.
func TestRoutersShareOverTLSWithAToken(t *testing.T) {
	defer goleak.VerifyNone(t)
	t.Run("", func(t *testing.T) {
		cert, key := testenv.Certificate(t)
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		s := natsServer(t, 0, func(o *server.Options) {
			o.Authorization, o.TLS, o.TLSTimeout = "a token", true, 10
			o.TLSConfig = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
		})
		cfg := DefaultConfig()
		cfg.NATS, cfg.Token, cfg.TLS.CAFile = s.ClientURL(), "a token", cert
		one, two := connect(t, cfg), connect(t, cfg)
		share(t, one, two)
		for name, change := range map[string]func(cfg *Config){
			"authorization": func(cfg *Config) { cfg.Token = "another token" },
			"certificate":   func(cfg *Config) { cfg.TLS.CAFile = "" },
		} {
			other := cfg
			change(&other)
			three := connect(t, other)
			testenv.Until(t, "the reason is shown: "+name, func() bool {
				status := three.sync.Status()
				return !status.Connected && strings.Contains(strings.ToLower(status.LastError), name)
			})
			if strings.Contains(three.sync.Status().LastError, "token") {
				t.Errorf("the error quotes the token: %s", three.sync.Status().LastError)
			}
		}
	})
}

func TestEmbeddedServersShareOverTLS(t *testing.T) {
	defer goleak.VerifyNone(t)
	t.Run("", func(t *testing.T) {
		cert, key := testenv.Certificate(t)
		port := testenv.FreePort(t)
		join := func(port int, change func(cfg *Config)) *member {
			cfg := DefaultConfig()
			cfg.Embedded, cfg.Listen = true, fmt.Sprintf("127.0.0.1:%d", port)
			change(&cfg)
			return connect(t, cfg)
		}
		tls := func(cfg *Config) { cfg.TLS.CAFile, cfg.TLS.CertFile, cfg.TLS.KeyFile = cert, cert, key }
		routed := func(cfg *Config) { cfg.Routes = []string{fmt.Sprintf("nats-route://127.0.0.1:%d", port)} }
		one := join(port, tls)
		two := join(testenv.FreePort(t), func(cfg *Config) { tls(cfg); routed(cfg) })
		plain := join(testenv.FreePort(t), routed)
		testenv.Until(t, "the two with TLS know each other", func() bool { return len(one.sync.Status().Peers) == 1 })
		share(t, one, two)
		if n := len(plain.sync.Status().Peers); n != 0 {
			t.Errorf("a router without TLS has %d peers", n)
		}
	})
}

// Machines that are off answer nothing: each attempt to reach one takes as long as it may.
func TestRoutesThatAnswerNothingDelayNoOther(t *testing.T) {
	port := testenv.FreePort(t)
	cfg := DefaultConfig()
	cfg.Embedded, cfg.Listen = true, "127.0.0.1:0"
	for range 20 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		cfg.Routes = append(cfg.Routes, "nats-route://"+l.Addr().String()) // nobody accepts
	}
	cfg.Routes = append(cfg.Routes, fmt.Sprintf("nats-route://127.0.0.1:%d", port))
	options, err := cfg.server(1)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	(&embedded{options: options}).serversAt(t.Context())
	if took := time.Since(began); took > 10*routeInterval { // one after the other they take twenty times the interval
		t.Errorf("a look at the routes took %v", took)
	}
	one := connectWith(t, cfg, func(*Sync) {})
	testenv.Until(t, "the server looks for its routes", func() bool { return one.sync.link.(*natsLink).node.Load() != nil })
	cfg.Listen, cfg.Routes = fmt.Sprintf("127.0.0.1:%d", port), nil
	began = time.Now()
	two := connectWith(t, cfg, func(*Sync) {})
	testenv.Until(t, "the routers know each other", func() bool {
		return len(one.sync.Status().Peers) == 1 && len(two.sync.Status().Peers) == 1
	})
	took := time.Since(began)
	t.Logf("the routers know each other after %v (the goal is 1 s)", took.Round(time.Millisecond))
	if took > 5*time.Second {
		t.Errorf("the routers know each other only after %v", took)
	}
}

func TestAnEmbeddedServerWithoutItsPortIsAnError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for setting, change := range map[string]func(*Config){
		"sync.listen (--sync-listen)": func(c *Config) { c.Listen = l.Addr().String() },
		"sync.client_listen":          func(c *Config) { c.Listen, c.ClientListen = "127.0.0.1:0", l.Addr().String() },
	} {
		cfg := DefaultConfig()
		cfg.Embedded = true
		change(&cfg)
		s := New(cfg, Parts{NewPeer: func() *warmpath.Peer { return nil }, Fleet: fleet.New(fleet.Config{}), Log: discard})
		err := s.Run(context.Background())
		if err == nil {
			t.Fatal("two servers listen at one address")
		}
		for _, want := range []string{l.Addr().String(), "in use", "Choose another address with " + setting} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("the error does not say %q: %v", want, err)
			}
		}
	}
}

func TestRoutersLogInAtNATS(t *testing.T) {
	token := func(text string) func(*Config) { return func(c *Config) { c.Token = text } }
	file := func(name string) func(*Config) { return func(c *Config) { c.CredentialsFile = name } }
	trusted, right, wrong := credentials(t)
	for name, test := range map[string]struct {
		server       func(o *server.Options)
		right, wrong func(c *Config)
	}{
		"token":       {func(o *server.Options) { o.Authorization = "the right token" }, token("the right token"), token("a wrong token")},
		"credentials": {trusted, file(right), file(wrong)},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.NATS = natsServer(t, 0, test.server).ClientURL()
			refused := cfg
			test.right(&cfg)
			test.wrong(&refused)
			for _, c := range []*Config{&cfg, &refused} {
				if err := c.Validate(); err != nil {
					t.Fatal(err)
				}
			}
			one, two, three := connect(t, cfg), connect(t, cfg), connect(t, refused)
			testenv.Until(t, "two routers know each other", func() bool { return len(one.sync.Status().Peers) == 1 && len(two.sync.Status().Peers) == 1 })
			share(t, one, two)
			testenv.Until(t, "the third router says why it is alone", func() bool {
				s := three.sync.Status()
				return !s.Connected && strings.Contains(strings.ToLower(s.LastError), "authorization")
			})
		})
	}
}

// credentials returns the options of a server that trusts an operator, a file with credentials of a user that the
// operator's account signed, and a file with those of a user that another account signed.
func credentials(t *testing.T) (trusted func(o *server.Options), right, wrong string) {
	t.Helper()
	pair := func(make func() (nkeys.KeyPair, error)) (k nkeys.KeyPair, public string) {
		k, err := make()
		if err != nil {
			t.Fatal(err)
		}
		if public, err = k.PublicKey(); err != nil {
			t.Fatal(err)
		}
		return k, public
	}
	encode := func(claims jwt.Claims, by nkeys.KeyPair) string {
		text, err := claims.Encode(by)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	operator, operatorKey := pair(nkeys.CreateOperator)
	account, accountKey := pair(nkeys.CreateAccount)
	other, _ := pair(nkeys.CreateAccount)
	file := func(name string, by nkeys.KeyPair) string {
		user, userKey := pair(nkeys.CreateUser)
		seed, err := user.Seed()
		if err != nil {
			t.Fatal(err)
		}
		text, err := jwt.FormatUserConfig(encode(jwt.NewUserClaims(userKey), by), seed)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	known := &server.MemAccResolver{}
	if err := known.Store(accountKey, encode(jwt.NewAccountClaims(accountKey), operator)); err != nil {
		t.Fatal(err)
	}
	trusted = func(o *server.Options) { o.TrustedKeys, o.AccountResolver = []string{operatorKey}, known }
	return trusted, file("right.creds", account), file("wrong.creds", other)
}
