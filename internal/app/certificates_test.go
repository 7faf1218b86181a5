package app_test

import (
	"crypto/tls"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/app"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/test/testenv"
)

// secured is a router with TLS at both listeners, whose client needs a certificate.
type secured struct {
	*router
	authority *testenv.Authority
	cert, key string // files of the server's certificate
	own       tls.Certificate
	log       *testenv.Buffer
}

func secure(t *testing.T) *secured {
	t.Helper()
	s := buildSecure(t)
	s.run()
	return s
}

// buildSecure is secure, but the router does not run.
func buildSecure(t *testing.T) *secured {
	t.Helper()
	dir := t.TempDir()
	s := &secured{authority: testenv.NewAuthority(t), cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem"), log: &testenv.Buffer{}}
	s.authority.Issue(s.cert, s.key, 100)
	own := [2]string{filepath.Join(dir, "own.pem"), filepath.Join(dir, "own.key")}
	s.authority.Issue(own[0], own[1], 7)
	var err error
	if s.own, err = tls.LoadX509KeyPair(own[0], own[1]); err != nil {
		t.Fatal(err)
	}
	cfg := settings(engine(t, nil))
	cfg.WatchInterval = 10 * time.Millisecond
	cfg.TLS.CertFile, cfg.TLS.KeyFile, cfg.TLS.ClientCAFile = s.cert, s.key, s.authority.File
	cfg.Admin.TLS = cfg.TLS
	if err := cfg.TLS.Validate(); err != nil {
		t.Fatal(err)
	}
	s.router = build(t, cfg, app.Options{Log: slog.New(slog.NewTextHandler(s.log, nil))})
	return s
}

// client returns a client with the certificate, or without one, that speaks HTTP/2 where the server does.
func (s *secured) client(t *testing.T, cert *tls.Certificate) *http.Client {
	config := &tls.Config{RootCAs: s.authority.Pool}
	if cert != nil {
		config.Certificates = []tls.Certificate{*cert}
	}
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// get returns the status, and the serial number of the server's certificate on that connection.
func get(t *testing.T, c *http.Client, url string) (*http.Response, string, int64) {
	t.Helper()
	resp, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(resp.Body)
	return resp, string(text), resp.TLS.PeerCertificates[0].SerialNumber.Int64()
}

func TestClientsNeedACertificateOfTheAuthorityAndProbesDoNot(t *testing.T) {
	s := secure(t)
	front, back := "https://"+s.Addr().String(), "https://"+s.AdminAddr().String()
	for _, c := range []struct {
		url           string
		without, with int
	}{
		{front + "/health", 200, 200}, {front + "/readiness", 200, 200}, {front + "/v1/models", 401, 200},
		{back + "/health", 200, 200}, {back + "/metrics", 401, 200}, {back + "/admin/workers", 401, 200},
	} {
		resp, text, _ := get(t, s.client(t, nil), c.url)
		if resp.StatusCode != c.without && !(strings.HasSuffix(c.url, "/readiness") && resp.StatusCode == 503) {
			t.Errorf("%s without a certificate: %d %s", c.url, resp.StatusCode, text)
		}
		if resp, text, _ := get(t, s.client(t, &s.own), c.url); resp.StatusCode != c.with && resp.StatusCode != 503 {
			t.Errorf("%s with a certificate: %d %s", c.url, resp.StatusCode, text)
		}
	}
	stranger := testenv.NewAuthority(t)
	dir := t.TempDir()
	stranger.Issue(filepath.Join(dir, "c"), filepath.Join(dir, "k"), 8)
	other, err := tls.LoadX509KeyPair(filepath.Join(dir, "c"), filepath.Join(dir, "k"))
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{RootCAs: s.authority.Pool, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &other, nil }}
	transport := &http.Transport{TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	if resp, err := (&http.Client{Transport: transport}).Get(front + "/health"); err == nil {
		_ = resp.Body.Close()
		t.Errorf("a certificate of another authority: %d", resp.StatusCode)
	}
}

func TestClientsMaySpeakHTTP2AndNoOldTLS(t *testing.T) {
	s := secure(t)
	if resp, _, _ := get(t, s.client(t, &s.own), "https://"+s.Addr().String()+"/v1/models"); resp.ProtoMajor != 2 {
		t.Errorf("the answer is %s", resp.Proto)
	}
	old := &tls.Config{RootCAs: s.authority.Pool, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
	if c, err := tls.Dial("tcp", s.Addr().String(), old); err == nil {
		_ = c.Close()
		t.Error("the router speaks TLS 1.1")
	}
}

func TestANewCertificateIsUsedWithoutARestart(t *testing.T) {
	s := secure(t)
	url := "https://" + s.Addr().String() + "/v1/models"
	kept := s.client(t, &s.own)
	if _, _, serial := get(t, kept, url); serial != 100 {
		t.Fatalf("serial %d", serial)
	}
	if err := os.WriteFile(s.cert, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.wait("the log names the broken certificate", func() bool { return strings.Contains(s.log.String(), "cannot be used") })
	if _, _, serial := get(t, s.client(t, &s.own), url); serial != 100 {
		t.Errorf("after a broken file the serial is %d", serial)
	}
	s.authority.Issue(s.cert, s.key, 101)
	s.wait("new connections get the new certificate", func() bool {
		_, _, serial := get(t, s.client(t, &s.own), url)
		return serial == 101
	})
	if _, _, serial := get(t, kept, url); serial != 100 {
		t.Errorf("the open connection was dropped: its serial is %d", serial)
	}
}

// The files of certificates are watched from before they are read, and not only from when the router listens.
func TestACertificateThatChangesDuringTheStartIsUsed(t *testing.T) {
	s := buildSecure(t)
	s.authority.Issue(s.cert, s.key, 101)
	s.run()
	s.wait("new connections get the new certificate", func() bool {
		_, _, serial := get(t, s.client(t, &s.own), "https://"+s.Addr().String()+"/v1/models")
		return serial == 101
	})
}

// A broken certificate keeps a new configuration from being used. The router tries again at each look, and says so
// once.
func TestABrokenCertificateFillsNoLogWhileTheFileWaits(t *testing.T) {
	s := secure(t)
	file := filepath.Join(filepath.Dir(s.cert), "f.yaml")
	write := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(file, "workers: []")
	var tries atomic.Int32
	cfg := settings(engine(t, nil))
	cfg.WatchInterval = 10 * time.Millisecond
	cfg.TLS.CertFile, cfg.TLS.KeyFile = s.cert, s.key
	if err := cfg.TLS.Validate(); err != nil {
		t.Fatal(err)
	}
	log := &testenv.Buffer{}
	r := startWith(t, cfg, app.Options{Log: slog.New(slog.NewTextHandler(log, nil)), File: file, Load: func() (*config.Config, error) {
		tries.Add(1)
		return cfg, nil
	}})
	get(t, s.client(t, nil), "https://"+r.Addr().String()+"/health") // the router watches its files
	write(s.cert, "broken")
	r.wait("the log names the certificate", func() bool { return strings.Contains(log.String(), `files="a certificate"`) })
	write(file, "workers: [] # changed")
	r.wait("the log names the configuration", func() bool { return strings.Contains(log.String(), `files="the configuration"`) })
	for range 3 {
		_, before, _ := strings.Cut(r.scrape(), "\nwarmpath_reloads_total")
		r.wait("the router tries again", func() bool {
			_, now, _ := strings.Cut(r.scrape(), "\nwarmpath_reloads_total")
			return now[:strings.Index(now, "ok")] != before[:strings.Index(before, "ok")]
		})
	}
	if n := strings.Count(log.String(), `files="the configuration"`); n != 1 {
		t.Errorf("the log names the configuration %d times", n)
	}
	s.authority.Issue(s.cert, s.key, 101)
	r.wait("the new configuration is in force", func() bool { return tries.Load() == 1 })
}
