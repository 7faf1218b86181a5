package replica

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

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
	before := one.sync.Status().Counts.Connects
	testenv.Until(t, "the third router refuses routes", func() bool { return len(book.lines("Route Error 'Authorization Violation'")) >= 3 })
	testenv.Until(t, "the server has read its options again", func() bool { return len(book.lines("Reloaded server configuration")) > 0 })
	if n := one.sync.Status().Counts.Connects; n != before {
		t.Errorf("the router connected %d more times", n-before)
	}
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
		node, err := startEmbedded(&cfg, uint64(i), discard)
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
