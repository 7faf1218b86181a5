package replica

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/warmpath/warmpath/test/testenv"
)

// hostileRoute connects to the listener for routes of m as another router's server would, and subscribes to n subjects.
// The connection stays until the test ends, or the server closes it: then closed is closed. address is that of the
// hostile server.
func hostileRoute(t *testing.T, m *member, password string, n int) (address string, closed chan struct{}) {
	t.Helper()
	node := m.sync.link.(*natsLink).node.Load()
	conn, err := net.Dial("tcp", node.server.ClusterAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	in := bufio.NewReader(conn)
	if _, err := in.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "CONNECT {\"user\":\"u\",\"pass\":%q,\"name\":\"HOSTILE\",\"cluster\":\"warmpath-warmpath\"}\r\n", password)
	fmt.Fprintf(&out, "INFO {\"server_id\":\"HOSTILE\",\"server_name\":\"hostile\",\"host\":\"127.0.0.1\",\"port\":1,\"cluster\":\"warmpath-warmpath\",\"proto\":1}\r\nPING\r\n")
	for i := range n {
		fmt.Fprintf(&out, "RS+ $G subject.%d\r\n", i)
	}
	_, _ = conn.Write(out.Bytes()) // the server may close the connection
	closed = make(chan struct{})
	go func() { // ends with the connection
		defer close(closed)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			if strings.HasPrefix(line, "PING") {
				_, _ = io.WriteString(conn, "PONG\r\n")
			}
		}
	}()
	return conn.LocalAddr().String(), closed
}

// withPassword returns a router with an embedded server that asks for a password.
func withPassword(t *testing.T, change func(*Config), before func(*Sync)) *member {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Embedded, cfg.Listen, cfg.User, cfg.Password = true, "127.0.0.1:0", "u", "a password"
	change(&cfg)
	m := connectWith(t, cfg, before)
	testenv.Until(t, "the server runs", func() bool { return m.sync.link.(*natsLink).node.Load() != nil })
	return m
}

// The password is what protects the server from the subscriptions of strangers: nats-server bounds those of no route.
func TestARouteWithoutThePasswordHasNoSubscriptions(t *testing.T) {
	for _, password := range []string{"a password", "another password"} {
		m := withPassword(t, func(*Config) {}, func(*Sync) {})
		subscriptions := m.sync.link.(*natsLink).node.Load().server.NumSubscriptions
		_, closed := hostileRoute(t, m, password, 1000)
		if password == "a password" { // the test knows how to subscribe
			testenv.Until(t, "the server has the subscriptions", func() bool { return subscriptions() >= 1000 })
			continue
		}
		<-closed
		if n := subscriptions(); n > 2 {
			t.Errorf("with %s there are %d subscriptions", password, n)
		}
	}
}

func TestTheLogWarnsOfARouteWithVeryManySubscriptions(t *testing.T) {
	book, log := logged(slog.LevelInfo)
	// A server closes the connection of another one that tells of 17,000 subscriptions before it answers a ping, if the
	// machine is busy.
	m := withPassword(t, func(*Config) {}, func(s *Sync) {
		log(s)
		s.manySubscriptions = 200
	})
	address, _ := hostileRoute(t, m, "a password", 300)
	testenv.Until(t, "the log warns", func() bool {
		return len(book.lines("level=WARN", "very many subscriptions", "address="+address, "sync.listen")) == 1
	})
}

func TestTheSubscriptionsOfAClientAreBounded(t *testing.T) {
	at := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	m := withPassword(t, func(c *Config) { c.ClientListen = at }, func(*Sync) {})
	refused := make(chan struct{}, 1)
	client, err := nats.Connect("nats://"+at, nats.UserInfo("u", "a password"), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrMaxSubscriptionsExceeded) {
			wake(refused)
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for i := range 2 * maxClientSubscriptions {
		if _, err := client.Subscribe(fmt.Sprint("subject.", i), func(*nats.Msg) {}); err != nil {
			break // it knows already
		}
	}
	_ = client.Flush()
	testenv.Until(t, "a subscription is refused", func() bool { return len(refused) > 0 })
	if n := m.sync.link.(*natsLink).node.Load().server.NumSubscriptions(); n > maxClientSubscriptions+2 {
		t.Errorf("there are %d subscriptions", n)
	}
}
