package app_test

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/app"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/test/testenv"
)

// file writes a configuration file, and returns the function that loads it as the commands do.
func file(t *testing.T, text string, override func(*config.Config)) *config.Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "warmpath.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(path, override)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// trusts reports whether all holders of a router have the trust, and there are some.
func (r *router) trusts(want fleet.Trust) bool {
	s := r.Router().Fleet().Snapshot()
	n := 0
	for _, w := range s.Workers() {
		for _, h := range w.Holders {
			if trust, _ := s.Trust(h); trust != want {
				return false
			}
			n++
		}
	}
	return n > 0
}

// An index service with certificates for both sides and a key: everything comes from the configuration file and the
// environment, as operators give it. A router without one of them gets nothing; a second service takes the index of the
// first one as a warm start over the same listener.
func TestAnIndexServiceIsReachedWithItsKeyAndCertificates(t *testing.T) {
	dir, authority := t.TempDir(), testenv.NewAuthority(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	authority.Issue(at("server.pem"), at("server.key"), 1)
	authority.Issue(at("client.pem"), at("client.key"), 2)
	if err := os.WriteFile(at("key"), []byte(" the-index-key\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	e := engine(t, nil)
	common := "listen: 127.0.0.1:0\nadmin: {listen: \"\"}\nhealth: {retry: 10ms}\nworkers: [{url: \"" + e.URL() + "\"}]\n"
	service := common + fmt.Sprintf("index_service:\n  listen: 127.0.0.1:0\n  grpc_listen: 127.0.0.1:0\n  key_file: %s\n  tls: {cert_file: %s, key_file: %s, client_ca_file: %s}\n",
		at("key"), at("server.pem"), at("server.key"), authority.File)
	run := func(text string, indexOnly bool, override func(*config.Config)) *router {
		t.Helper()
		r := build(t, file(t, text, override), app.Options{Log: slog.New(slog.DiscardHandler), IndexOnly: indexOnly})
		r.run()
		return r
	}
	first := run(service, true, nil)
	first.exact(1)
	front, _ := first.IndexAddrs()
	url := "https://" + front.String()
	client := fmt.Sprintf("tls: {ca_file: %s, cert_file: %s, key_file: %s}", authority.File, at("client.pem"), at("client.key"))

	t.Run("a router with key_file", func(t *testing.T) {
		r := run(common+"index:\n  url: "+url+"\n  key_file: "+at("key")+"\n  "+client+"\n", false, nil)
		r.wait("the trust is the service's", func() bool { return r.trusts(fleet.TrustExact) })
	})
	t.Run("a router with the key in the environment", func(t *testing.T) {
		t.Setenv(config.EnvIndexKey, "the-index-key")
		r := run(common+"index:\n  url: "+url+"\n  "+client+"\n", false, nil)
		r.wait("the trust is the service's", func() bool { return r.trusts(fleet.TrustExact) })
	})
	for name, c := range map[string]struct{ index, why string }{
		"a wrong key":    {"key: another-key\n  " + client, "the index service refuses the router's key"},
		"no key":         {client, "the index service refuses the router's key"},
		"no certificate": {"key_file: " + at("key") + "\n  tls: {ca_file: " + authority.File + "}", "the index service requires a certificate"},
		"no authority":   {"key_file: " + at("key"), "the index service cannot be reached over TLS"},
	} {
		t.Run(name, func(t *testing.T) {
			r := run(common+"index:\n  url: "+url+"\n  "+c.index+"\n", false, nil)
			r.wait("the router says what is wrong", func() bool {
				s := r.Router().Fleet().Snapshot()
				for _, w := range s.Workers() {
					trust, why := s.Trust(w.Holders[0])
					return trust == fleet.TrustNone && why == c.why
				}
				return false
			})
		})
	}
	t.Run("a service that starts warm", func(t *testing.T) {
		second := run(service+"index:\n  peers: [\""+url+"\"]\n  peer_timeout: 30s\n  "+client+"\n", true, nil)
		second.exact(1)
		at, _ := second.IndexAddrs()
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "client.pem"), filepath.Join(dir, "client.key"))
		if err != nil {
			t.Fatal(err)
		}
		c := (&secured{authority: authority}).client(t, &pair)
		second.wait("the snapshot is counted", func() bool {
			_, text, _ := get(t, c, "https://"+at.String()+"/metrics")
			return strings.Contains(text, `warmpath_snapshots_total{outcome="done",use="taken"} 1`)
		})
		resp, _, _ := get(t, c, url+"/admin/index/snapshot")
		if resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("a snapshot without the key: %d", resp.StatusCode)
		}
	})
}
