package replica

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/warmpath/warmpath/test/testenv"
)

// A server that refuses the login is asked again after longer and longer times. When it accepts the login, the router
// connects.
func TestRefusedLoginsAreTriedAgainSeldom(t *testing.T) {
	s := natsServer(t, 0, func(o *server.Options) { o.Username, o.Password = "u", "another password" })
	cfg := DefaultConfig()
	cfg.NATS, cfg.User, cfg.Password = s.ClientURL(), "u", "a password"
	began := time.Now()
	m := connect(t, cfg)
	testenv.Until(t, "the router has tried to connect six times", func() bool {
		v, err := s.Varz(nil)
		if err != nil {
			t.Fatal(err)
		}
		return v.TotalConnections >= 6
	})
	// Even if the first refusal is not seen, the waits are 150, 300, 600 and 1200 ms.
	if took := time.Since(began); took < 2250*time.Millisecond {
		t.Errorf("six attempts take %v", took)
	}
	if err := s.ReloadOptions(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, Username: "u", Password: "a password"}); err != nil {
		t.Fatal(err)
	}
	testenv.Until(t, "the router connects", m.sync.link.connected)
}

// The address of a route may be of something else.
func TestTheLogSaysThatNoRouterListensAtARoute(t *testing.T) {
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	cfg := DefaultConfig()
	cfg.Embedded, cfg.Listen, cfg.Routes = true, "127.0.0.1:0", []string{strings.Replace(web.URL, "http:", "nats-route:", 1)}
	book, log := logged(slog.LevelInfo)
	connectWith(t, cfg, log)
	testenv.Until(t, "the log says so", func() bool {
		return len(book.lines("level=WARN", "or no router listens there", "as its sync.listen?")) > 0
	})
}

// An operator takes the address of an embedded server for one of NATS.
func TestTheLogSaysThatAPortIsForRoutes(t *testing.T) {
	e := node(t, discard, func(*Config) {})
	cfg := DefaultConfig()
	cfg.NATS = "nats://" + e.server.ClusterAddr().String()
	book, log := logged(slog.LevelInfo)
	connectWith(t, cfg, log)
	testenv.Until(t, "the log says what to use", func() bool {
		return len(book.lines("level=WARN", "route port", "use --sync-embedded and --sync-route")) > 0
	})
}
