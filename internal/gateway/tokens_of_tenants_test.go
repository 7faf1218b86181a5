package gateway_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/tenant"
	"github.com/warmpath/warmpath/test/testenv"
)

func TestATokenOfTheIssuerNamesTheTenant(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", "k1"))
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	defer server.Close()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": server.URL, "jwks_uri": server.URL + "/keys"})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &key.PublicKey, KeyID: "k1"}}})
	})
	token := func(org string) string {
		text, err := jwt.Signed(signer).Claims(map[string]any{"iss": server.URL, "aud": "warmpath", "exp": time.Now().Add(time.Hour).Unix(), "org": org}).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	cfg := tenant.DefaultTokenConfig()
	cfg.Issuer, cfg.Audience, cfg.TenantClaim = server.URL, "warmpath", "org"
	issuer := tenant.NewIssuer(cfg)
	_, change := withTenants(tenant.Config{Name: "acme", KeysSHA256: hashed("key")}, tenant.Config{Name: "named"})
	f := serve(t, func(s *settings) {
		change(s)
		with := s.parts
		s.parts = func(p *gateway.Parts) { with(p); p.Issuer = issuer }
	}, worker(t, plain))
	check := func(credential string, status int, code string) {
		t.Helper()
		resp, text := f.post(t, chat, "Authorization", "Bearer "+credential)
		if resp.StatusCode != status || !strings.Contains(text, code) {
			t.Errorf("%.10s: %d %s, want %d %s", credential, resp.StatusCode, text, status, code)
		}
	}
	check("key", 200, "") // the issuer was not reached yet: only tokens wait for it
	check(token("acme"), 503, "issuer_unreachable")
	ctx, stop := context.WithCancel(t.Context())
	var ends sync.WaitGroup
	client := &http.Client{Transport: &http.Transport{}}
	ends.Go(func() { _ = issuer.Run(ctx, client, slog.New(slog.DiscardHandler)) })
	defer client.CloseIdleConnections()
	defer ends.Wait()
	defer stop()
	good := token("acme")
	testenv.Until(t, "the issuer's keys are known", func() bool { _, err := issuer.Tenant(good, time.Now()); return err == nil })
	check(good, 200, "")
	check(token("named"), 200, "")
	check(token("stranger"), 401, "unknown_tenant")
	check(token(""), 401, `its claim \"org\" is missing or is no text`)
	check(good[:len(good)-8]+"AAAAAAAA", 401, "the token is not valid: its signature is wrong")
	check("sk-unknown", 401, "invalid_api_key")
	if rec := f.last(t, 3); rec.Tenant != "named" {
		t.Errorf("the tenant is %q", rec.Tenant)
	}
}
