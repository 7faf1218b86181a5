package testenv_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/test/testenv"
)

// oneWay is a server before a mock engine that clients reach in one way only.
type oneWay struct {
	url    string
	engine *mockengine.Server
	other  atomic.Int64 // number of requests with another version of HTTP than the front's
}

// newOneWay serves an engine on l in one version of HTTP, with pair if it is not nil.
func newOneWay(t *testing.T, at string, l net.Listener, version int, pair *tls.Certificate) *oneWay {
	t.Helper()
	f := &oneWay{url: at, engine: mock(t, func(c *mockengine.Config) { c.Speed, c.APIKey = 100, "s3cret" })}
	to, err := url.Parse(f.engine.URL())
	if err != nil {
		t.Fatal(err)
	}
	pass := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		FlushInterval: -1, // each event at once
		ErrorLog:      log.New(io.Discard, "", 0),
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != version {
			f.other.Add(1)
		}
		pass.ServeHTTP(w, r)
	}))
	_ = s.Listener.Close()
	s.Listener = l
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(version == 1)
	s.Config.Protocols.SetHTTP2(version == 2)
	s.Config.Protocols.SetUnencryptedHTTP2(version == 2)
	if pair != nil {
		s.EnableHTTP2 = version == 2
		s.TLS = &tls.Config{Certificates: []tls.Certificate{*pair}}
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return f
}

// listener opens a listener, and returns it with its address.
func listener(t *testing.T, network, address string) (net.Listener, string) {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	return l, l.Addr().String()
}

// TestWorkersOfTheBinaryOverEveryTransport: the built router finds its workers over HTTP/1.1 and HTTP/2, with and
// without TLS, and behind Unix sockets; it follows their events, and each of them answers requests.
func TestWorkersOfTheBinaryOverEveryTransport(t *testing.T) {
	dir := t.TempDir()
	cert, key := testenv.Certificate(t)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	var fronts []*oneWay
	text := patient + "policy: round_robin\nworker_defaults: {api_key: s3cret, api_key_use: always, tls: {ca_file: " + cert + "}}\nworkers:\n"
	for i, c := range []struct {
		scheme, settings string
		version          int
	}{
		{"http", "protocol: http2", 2},
		{"https", "protocol: auto", 2},
		{"https", "protocol: http2, tls: {ca_file: " + cert + "}", 2},
		{"https", "protocol: auto", 1},
		{"unix", "protocol: auto", 1},
		{"unix", "protocol: http2", 2},
	} {
		var f *oneWay
		switch socket := filepath.Join(dir, fmt.Sprintf("w%d.sock", i)); c.scheme {
		case "unix":
			l, _ := listener(t, "unix", socket)
			f = newOneWay(t, "unix://"+socket, l, c.version, nil)
		case "https":
			l, address := listener(t, "tcp", "127.0.0.1:0")
			f = newOneWay(t, "https://"+address, l, c.version, &pair)
		default:
			l, address := listener(t, "tcp", "127.0.0.1:0")
			f = newOneWay(t, "http://"+address, l, c.version, nil)
		}
		fronts = append(fronts, f)
		events := f.engine.Sources()[0]
		text += fmt.Sprintf("  - {url: %q, events: %q, replay: %q, %s}\n", f.url, events.Endpoint, events.Replay, c.settings)
	}
	file := filepath.Join(dir, "warmpath.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	g := testenv.Serve(t, "--config", file)
	testenv.WaitFor(t, 30*time.Second, "every worker to be ready", func() error { return allReady(g, len(fronts)) })
	servedByAll(t, g, fronts)
	for _, f := range fronts {
		if n := f.other.Load(); n > 0 {
			t.Errorf("%s: %d requests with another version of HTTP", f.url, n)
		}
	}
}

// allReady returns nil if n workers are ready and their caches are known exactly.
func allReady(g *testenv.Gateway, n int) error {
	resp, err := http.Get(g.Admin + "/admin/workers")
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	all, err := io.ReadAll(resp.Body)
	if got := strings.Count(string(all), `"trust": "exact"`); err == nil && got != n {
		err = fmt.Errorf("%d of %d: %s", got, n, all)
	}
	return err
}

// servedByAll sends requests, streamed and not, until each worker answered both kinds.
func servedByAll(t *testing.T, g *testenv.Gateway, fronts []*oneWay) {
	t.Helper()
	client := &http.Client{Timeout: 30 * time.Second}
	defer client.CloseIdleConnections()
	for _, stream := range []bool{true, false} {
		answered := map[string]int{}
		for i := range 4 * len(fronts) {
			body := fmt.Sprintf(`{"stream":%v,"max_tokens":8,"messages":[{"role":"user","content":"request %d"}]}`, stream, i)
			resp, err := client.Post(g.URL+"/v1/chat/completions", "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || resp.StatusCode != http.StatusOK || stream != strings.HasSuffix(string(text), "data: [DONE]\n\n") {
				t.Errorf("stream %v: %d %v %s", stream, resp.StatusCode, err, text)
			}
			answered[resp.Header.Get("X-Warmpath-Worker")]++
		}
		for _, f := range fronts {
			if answered[f.url] == 0 {
				t.Errorf("stream %v: %s answered nothing: %v", stream, f.url, answered)
			}
		}
	}
}

// TestNginxAsAWorkerWithHTTP2: nginx, a server of others, speaks HTTP/2 without TLS before an engine. It ends each
// connection after five requests (GOAWAY), and no request fails.
func TestNginxAsAWorkerWithHTTP2(t *testing.T) {
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		testenv.Missing(t, "nginx", "apt-get install nginx-light")
	}
	dir, port := t.TempDir(), testenv.FreePort(t)
	engine := mock(t, func(c *mockengine.Config) { c.Speed = 100 })
	conf := fmt.Sprintf(`daemon off; worker_processes 1; pid %[1]s/pid; error_log %[1]s/error.log;
events { worker_connections 256; }
http {
  access_log %[1]s/access.log; client_body_temp_path %[1]s; proxy_temp_path %[1]s; fastcgi_temp_path %[1]s;
  uwsgi_temp_path %[1]s; scgi_temp_path %[1]s;
  server {
    listen 127.0.0.1:%[2]d http2; keepalive_requests 5;
    location / { proxy_pass %[3]s; proxy_buffering off; proxy_http_version 1.1; }
  }
}
`, dir, port, engine.URL())
	if err := os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	testenv.Start(t, "nginx", nginx, "-p", dir, "-c", "nginx.conf", "-e", "error.log")
	f := &oneWay{url: fmt.Sprintf("http://127.0.0.1:%d", port), engine: engine}
	events := engine.Sources()[0]
	g := testenv.Serve(t, "--worker", fmt.Sprintf("%s,protocol=http2,events=%s,replay=%s", f.url, events.Endpoint, events.Replay))
	testenv.WaitFor(t, 30*time.Second, "the worker to be ready", func() error { return allReady(g, 1) })
	for range 5 {
		servedByAll(t, g, []*oneWay{f})
	}
	var log []byte
	testenv.WaitFor(t, 10*time.Second, "nginx to log the requests", func() error { // it writes a line after the answer
		if log, err = os.ReadFile(filepath.Join(dir, "access.log")); err != nil {
			return err
		}
		if n := strings.Count(string(log), `chat/completions HTTP/2.0" 200`); n != 40 {
			return fmt.Errorf("%d requests: %s", n, log)
		}
		return nil
	})
	if strings.Contains(string(log), "HTTP/1.") {
		t.Errorf("nginx saw %s", log)
	}
}
