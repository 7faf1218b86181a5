package replica

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/warmpath/warmpath/test/testenv"
)

// A server of NATS may repeat what the client has sent to it. Neither the log nor the status shows the secrets in it.
func TestAServerThatRepeatsSecretsShowsThemToNobody(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"a token": func(c *Config) { c.Token = "very<secret>token" },
		"a user":  func(c *Config) { c.User, c.Password = "very-secret-user", "very-secret-password" },
		"a user in the URL": func(c *Config) {
			c.NATS = strings.Replace(c.NATS, "://", "://very-secret-user:very-secret-password@", 1)
		},
		"a token in the URL":     func(c *Config) { c.NATS = strings.Replace(c.NATS, "://", "://very-secret-token@", 1) },
		"the key of the routers": func(c *Config) { c.Key = "very-secret-key-of-routers"; c.Token = c.Key },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := DefaultConfig()
			cfg.NATS = "nats://" + echoNATS(t)
			change(&cfg)
			book, log := logged(slog.LevelDebug)
			m := connectWith(t, cfg, log)
			testenv.Until(t, "the log and the status say why the router is alone", func() bool {
				return strings.Contains(m.sync.Status().LastError, "you sent") && len(book.lines("serves alone", "you sent")) > 0
			})
			m.stop()
			for what, text := range map[string]string{"log": strings.Join(book.lines(), "\n"), "status": m.sync.Status().LastError} {
				if strings.Contains(text, "very") {
					t.Errorf("the %s has a secret:\n%s", what, text)
				}
			}
		})
	}
}

// echoNATS starts a server that answers CONNECT with an error that repeats it. It returns the address.
func echoNATS(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { // ends when the listener is closed
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { // ends with the test, or when the client closes the connection
				defer func() { _ = conn.Close() }()
				defer context.AfterFunc(t.Context(), func() { _ = conn.Close() })()
				_, _ = fmt.Fprint(conn, `INFO {"server_id":"x","version":"2.10.0","proto":1,"auth_required":true,"max_payload":1048576}`+"\r\n")
				line := make([]byte, 4096)
				if n, err := conn.Read(line); err == nil {
					_, _ = fmt.Fprintf(conn, "-ERR 'you sent %s'\r\n", strings.Join(strings.Fields(string(line[:n])), " "))
					_, _ = conn.Read(line)
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		running.Wait()
	})
	return l.Addr().String()
}
