package app_test

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/warmpath/warmpath/internal/app"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/test/testenv"
)

// inFront passes all requests from l to the engine, without the path prefix, until the test ends.
func inFront(t *testing.T, l net.Listener, prefix string, e *mockengine.Server) {
	t.Helper()
	to, err := url.Parse(e.URL())
	if err != nil {
		t.Fatal(err)
	}
	pass := httputil.NewSingleHostReverseProxy(to)
	pass.FlushInterval = -1
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.StripPrefix(prefix, pass)}}
	s.Start()
	t.Cleanup(s.Close)
}

// Discovery, events, load reports, the ids of prompts and requests all reach a worker over https with an authority, a
// client certificate, a path prefix and a key of its own, and a worker behind a Unix socket. The settings come from
// worker_defaults.
func TestWorkersOverHTTPSAndUnixSocketsServeEverything(t *testing.T) {
	const key = "engine-key"
	keyed := func(c *mockengine.Config) { c.APIKey = key }
	dir := t.TempDir()
	authority := testenv.NewAuthority(t)
	cert, private := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	authority.Issue(cert, private, 3)
	pair, err := tls.LoadX509KeyPair(cert, private)
	if err != nil {
		t.Fatal(err)
	}
	secure, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: authority.Pool, ClientAuth: tls.RequireAndVerifyClientCert,
	})
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "engine.sock")
	local, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	first, second := engine(t, keyed), engine(t, keyed)
	inFront(t, secure, "/vllm-a", first)
	inFront(t, local, "", second)
	workers := []string{"https://" + secure.Addr().String() + "/vllm-a", "unix://" + socket}

	file := filepath.Join(dir, "f.yaml")
	text := fmt.Sprintf(`
listen: 127.0.0.1:0
admin: {listen: 127.0.0.1:0}
health: {retry: 10ms}
policy: round_robin
worker_defaults:
  api_key: %s
  api_key_use: missing
  tls: {ca_file: %s, cert_file: %s, key_file: %s}
workers:
  - url: %s
  - {url: %q, events: %q, replay: %q}
`, key, authority.File, cert, private, workers[0], workers[1], second.Sources()[0].Endpoint, second.Sources()[0].Replay)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := startWith(t, cfg, app.Options{Log: slog.New(slog.DiscardHandler)})
	for _, worker := range workers {
		r.wait(worker+" is ready", func() bool { _, ready := r.has(worker); return ready })
	}
	r.exact(2)
	for i := range 8 {
		if err := r.answers(fmt.Sprintf("question %d", i), i%2 == 0); err != nil {
			t.Error(err)
		}
	}
	for _, e := range []*mockengine.Server{first, second} {
		if n := e.Stats().Requests; n == 0 {
			t.Errorf("%s answered no request", e.URL())
		}
	}
}
