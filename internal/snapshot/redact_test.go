package snapshot

import (
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvfeed"
	"github.com/warmpath/warmpath/test/testenv"
)

// A peer may repeat what the router has sent to it. The log does not show the admin key.
func TestAPeerThatRepeatsTheKeyShowsItToNobody(t *testing.T) {
	const key = "very-secret-key"
	for name, answer := range map[string]http.HandlerFunc{
		"an error": func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, "you sent "+r.Header.Get("Authorization"), http.StatusForbidden)
		},
		"an error that is cut": func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, strings.Repeat("x", 280)+"you sent "+key, http.StatusForbidden)
		},
		"a refusal that is cut": func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, strings.Repeat("x", 280)+"you sent "+key, http.StatusUnauthorized)
		},
		"no HTTP": func(w http.ResponseWriter, r *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				defer func() { _ = conn.(*net.TCPConn).Close() }()
				_, _ = conn.Write([]byte("HTTP/1.1 " + key + "\r\n\r\n"))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(answer)
			defer s.Close()
			logged := new(testenv.Buffer)
			log := slog.New(slog.NewTextHandler(logged, nil))
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			router, err := warmpath.New(warmpath.Options{Fleet: fleet.New(fleet.Config{})})
			if err != nil {
				t.Fatal(err)
			}
			feed := kvfeed.New(router, kvfeed.Config{}, log)
			k := NewKeeper(Config{Peers: []string{s.URL}, PeerTimeout: time.Minute}, Parts{Feed: feed, Client: client, Key: key, Name: "r", Version: "test", Room: 1 << 20, Log: log})
			k.warm(t.Context())
			text := logged.String()
			if strings.Contains(text, key[:6]) || !strings.Contains(text, "[redacted]") || !strings.Contains(text, "a peer gave no whole snapshot") {
				t.Errorf("the log:\n%s", text)
			}
		})
	}
}
