package replica

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/warmpath/warmpath/test/testenv"
)

// The routes of three routers name one router only. It is lost, and they still hear each other. When there is a server
// at its address again, they connect at once: they do not wait for the next attempt of nats-server.
//
// The server at its address first refuses routes. So no attempt of nats-server succeeds before the routers look.
func TestRoutersThatHearEachOtherConnectToALostHubAtOnce(t *testing.T) {
	hubAt := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	join := func(listen, password string, routes []string, before func(*Sync)) *member {
		cfg := DefaultConfig()
		cfg.Embedded, cfg.Listen, cfg.User, cfg.Password, cfg.Routes = true, listen, "u", password, routes
		return connectWith(t, cfg, before)
	}
	hub := join(hubAt, "a password", nil, func(*Sync) {})
	var spokes []*member
	var books []*logbook
	for range 3 {
		book, log := logged(slog.LevelDebug)
		listen := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
		spokes = append(spokes, join(listen, "a password", []string{"nats-route://" + hubAt}, log))
		books = append(books, book)
	}
	know := func(n int) func() bool {
		return func() bool {
			for _, m := range spokes {
				if node := m.sync.link.(*natsLink).node.Load(); len(m.sync.Status().Peers) != n || node == nil || node.peers() != n {
					return false
				}
			}
			return true
		}
	}
	testenv.Until(t, "all know each other", know(3))
	hub.stop()
	testenv.Until(t, "the others still know each other", know(2))
	for i, m := range spokes {
		testenv.Until(t, fmt.Sprintf("router %d sees that nobody is there", i), func() bool { return m.sync.link.(*natsLink).node.Load().unreached.Load() != nil })
	}
	hurried := func(b *logbook) int { return len(b.lines("Reloaded server configuration")) }
	var before []int
	for _, b := range books {
		before = append(before, hurried(b))
	}
	stranger := join(hubAt, "another password", nil, func(*Sync) {})
	for i, b := range books {
		testenv.Until(t, fmt.Sprintf("router %d makes its server connect", i), func() bool { return hurried(b) > before[i] })
	}
	stranger.stop()
	join(hubAt, "a password", nil, func(*Sync) {})
	testenv.Until(t, "all know each other again", know(3))
}
