package gateway_test

import (
	"crypto/tls"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/test/testenv"
)

// With TLS the server sees connections that wrap those of the listener. Their places must be freed all the same.
func TestPlacesOfConnectionsWithTLSAreFreed(t *testing.T) {
	dir, authority := t.TempDir(), testenv.NewAuthority(t)
	cfg := network.ListenerTLS{CertFile: filepath.Join(dir, "c"), KeyFile: filepath.Join(dir, "k")}
	authority.Issue(cfg.CertFile, cfg.KeyFile, 1)
	certificates, err := network.ReadCertificates(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f := serve(t, func(s *settings) {
		s.parts = func(p *gateway.Parts) {
			p.Certificates, p.Connections = certificates, gateway.ConnectionLimit{Serving: 1, Waiting: 1, Spare: 1}
		}
	}, worker(t, plain))
	for range 20 {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authority.Pool}, DisableKeepAlives: true}
		resp, err := (&http.Client{Transport: transport}).Post(strings.Replace(f.url, "http:", "https:", 1)+"/v1/chat/completions", "application/json", strings.NewReader(chat))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("status %d", resp.StatusCode)
		}
	}
}
