package tenant

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// testIssuer has a key, and serves it as an OpenID Connect issuer does.
type testIssuer struct {
	url   string
	mu    sync.Mutex
	keys  jose.JSONWebKeySet
	asked atomic.Int32
	down  atomic.Bool
}

func (i *testIssuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.asked.Add(1)
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.down.Load():
		w.WriteHeader(http.StatusBadGateway)
	case r.URL.Path == "/.well-known/openid-configuration":
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": i.url, "jwks_uri": i.url + "/keys"})
	default:
		_ = json.NewEncoder(w).Encode(i.keys)
	}
}

// RoundTrip answers without a network, so that a test may run in virtual time.
func (i *testIssuer) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	i.ServeHTTP(w, r)
	return w.Result(), nil
}

// add makes a key, and publishes it.
func (i *testIssuer) add(t testing.TB, id string) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys.Keys = append(i.keys.Keys, jose.JSONWebKey{Key: &key.PublicKey, KeyID: id, Algorithm: "ES256", Use: "sig"})
	return key
}

func sign(t testing.TB, key any, algorithm jose.SignatureAlgorithm, id string, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", id))
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func issuerFor(i *testIssuer) *Issuer {
	cfg := DefaultTokenConfig()
	cfg.Issuer, cfg.Audience, cfg.TenantClaim = i.url, "warmpath", "org"
	return NewIssuer(cfg)
}

func TestATokenNamesItsTenantOnlyIfAllOfItIsValid(t *testing.T) {
	i := &testIssuer{url: "https://issuer.test"}
	key := i.add(t, "k1")
	tokens := issuerFor(i)
	keys, err := tokens.read(t.Context(), &http.Client{Transport: i})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_800_000_000, 0)
	claims := func(change func(map[string]any)) map[string]any {
		c := map[string]any{"iss": i.url, "aud": []string{"other", "warmpath"}, "exp": now.Add(time.Hour).Unix(), "nbf": now.Unix(), "org": "acme"}
		change(c)
		return c
	}
	good := sign(t, key, jose.ES256, "k1", claims(func(map[string]any) {}))
	if _, err := tokens.Tenant(good, now); !errors.Is(err, ErrNoKeys) {
		t.Errorf("before the keys are known: %v", err)
	}
	tokens.keys.Store(keys)
	for range 2 { // the second time it is remembered
		if name, err := tokens.Tenant(good, now); name != "acme" || err != nil {
			t.Errorf("%q %v", name, err)
		}
	}
	for after, want := range map[time.Duration]error{-30 * time.Second: nil, -2 * time.Minute: ErrInvalidToken, time.Hour + 30*time.Second: nil, time.Hour + 2*time.Minute: ErrInvalidToken} {
		if _, err := tokens.Tenant(good, now.Add(after)); !errors.Is(err, want) {
			t.Errorf("after %v: %v, want %v", after, err, want)
		} else if over := after > 0; err != nil && strings.Contains(err.Error(), "is over") != over {
			t.Errorf("after %v: %v", after, err)
		}
	}
	stranger, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public, err := json.Marshal(i.keys.Keys[0])
	if err != nil {
		t.Fatal(err)
	}
	for name, token := range map[string]string{
		"another audience":                sign(t, key, jose.ES256, "k1", claims(func(c map[string]any) { c["aud"] = "other" })),
		"another issuer":                  sign(t, key, jose.ES256, "k1", claims(func(c map[string]any) { c["iss"] = "https://evil.test" })),
		"no end":                          sign(t, key, jose.ES256, "k1", claims(func(c map[string]any) { delete(c, "exp") })),
		"no tenant":                       sign(t, key, jose.ES256, "k1", claims(func(c map[string]any) { delete(c, "org") })),
		"a tenant that is a list":         sign(t, key, jose.ES256, "k1", claims(func(c map[string]any) { c["org"] = []string{"acme"} })),
		"another key":                     sign(t, stranger, jose.ES256, "k1", claims(func(map[string]any) {})),
		"an unknown key":                  sign(t, key, jose.ES256, "k2", claims(func(map[string]any) {})),
		"a public key as a shared secret": sign(t, public, jose.HS256, "k1", claims(func(map[string]any) {})),
		"no signature":                    "eyJhbGciOiJub25lIn0.eyJvcmciOiJhY21lIn0.",
		"a changed claim":                 good[:len(good)-90] + "A" + good[len(good)-89:],
		"an API key":                      "sk-abc",
		"a very long token":               good + strings.Repeat("A", maxToken),
	} {
		got, err := tokens.Tenant(token, now)
		if unnamed := strings.Contains(name, " tenant"); errors.Is(err, ErrNoClaim) != unnamed {
			t.Errorf("%s: %v; the claim is at fault: %t", name, err, unnamed)
		}
		if err == nil {
			t.Errorf("%s: the tenant is %q", name, got)
		}
		if why := refusals[name]; why != "" && (!errors.Is(err, ErrInvalidToken) || !strings.Contains(err.Error(), why)) {
			t.Errorf("%s: %v, want %q", name, err, why)
		}
	}
}

// refusals are the words in which the client learns what is wrong with its token.
var refusals = map[string]string{
	"another audience": "(aud)", "another issuer": "(iss)", "no end": "no end (exp)", "an unknown key": "(kid)",
	"another key": "signature is wrong", "a changed claim": "signature is wrong",
	"a public key as a shared secret": "(alg)", "no signature": "(alg)",
}

// OpenID Connect Core 1.0 §10.1: only if the issuer has several keys, a token must name its key.
func TestATokenWithoutAKeysNameIsOfTheOnlyKey(t *testing.T) {
	i := &testIssuer{url: "https://issuer.test"}
	key := i.add(t, "k1")
	now := time.Unix(1_800_000_000, 0)
	claims := map[string]any{"iss": i.url, "aud": "warmpath", "exp": now.Add(time.Hour).Unix(), "org": "acme"}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	for _, only := range []bool{true, false} {
		tokens := issuerFor(i)
		keys, err := tokens.read(t.Context(), &http.Client{Transport: i})
		if err != nil {
			t.Fatal(err)
		}
		tokens.keys.Store(keys)
		if name, err := tokens.Tenant(token, now); (name == "acme" && err == nil) != only {
			t.Errorf("the only key %v: %q %v", only, name, err)
		}
		i.add(t, "k2")
	}
}

func TestKeysAreReadAgainAndSurviveTheIssuersAbsence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &testIssuer{url: "https://issuer.test"}
		first := i.add(t, "k1")
		tokens := issuerFor(i)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { // ends with ctx, and is awaited below
			ended <- tokens.Run(ctx, &http.Client{Transport: i}, slog.New(slog.NewTextHandler(io.Discard, nil)))
		}()
		synctest.Wait()
		token := func(key *ecdsa.PrivateKey, id string) string {
			return sign(t, key, jose.ES256, id, map[string]any{"iss": i.url, "aud": "warmpath", "exp": time.Now().Add(24 * time.Hour).Unix(), "org": "acme"})
		}
		valid := func(key *ecdsa.PrivateKey, id string) bool {
			_, err := tokens.Tenant(token(key, id), time.Now())
			return err == nil
		}
		if !valid(first, "k1") {
			t.Fatal("the first key is not known")
		}
		second := i.add(t, "k2")
		asked := i.asked.Load()
		for range 1000 { // hostile tokens with invented keys
			valid(second, "invented")
		}
		synctest.Wait()
		if n := i.asked.Load() - asked; n != 0 {
			t.Errorf("the issuer was asked %d times within the pause", n)
		}
		<-time.After(pauseOfKeys)
		synctest.Wait()
		if !valid(second, "k2") || !valid(first, "k1") {
			t.Error("the second key was not read after a token had it")
		}
		asked = i.asked.Load()
		for range 10 {
			valid(second, "invented")
			<-time.After(pauseOfKeys / 10)
		}
		synctest.Wait()
		if n := i.asked.Load() - asked; n > 4 {
			t.Errorf("the issuer was asked %d times in one pause", n)
		}
		i.down.Store(true)
		<-time.After(3 * time.Hour)
		if !valid(first, "k1") {
			t.Error("a key is forgotten while the issuer does not answer")
		}
		i.down.Store(false)
		i.mu.Lock()
		i.keys.Keys = i.keys.Keys[1:] // the first key is withdrawn
		i.mu.Unlock()
		<-time.After(2 * time.Hour)
		if valid(first, "k1") || !valid(second, "k2") {
			t.Error("a withdrawn key is still valid")
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestRememberedTokensAreBounded(t *testing.T) {
	tokens := NewIssuer(DefaultTokenConfig())
	for n := range 3 * maxSeen {
		tokens.remember(digest{byte(n), byte(n >> 8), byte(n >> 16)}, verified{})
	}
	if len(tokens.seen) > maxSeen {
		t.Errorf("%d tokens are remembered", len(tokens.seen))
	}
}

// FuzzToken: no text is a token without a signature of the issuer, and none makes the reader panic.
func FuzzToken(f *testing.F) {
	i := &testIssuer{url: "https://issuer.test"}
	key := i.add(f, "k1")
	tokens := issuerFor(i)
	tokens.keys.Store(&i.keys)
	good := sign(f, key, jose.ES256, "k1", map[string]any{"iss": i.url, "aud": "warmpath", "exp": 2e9, "org": "acme"})
	f.Add(good[:len(good)-1])
	f.Add("eyJhbGciOiJub25lIn0.e30.")
	f.Fuzz(func(t *testing.T, token string) {
		if name, err := tokens.Tenant(token, time.Unix(1e9, 0)); err == nil && !strings.HasPrefix(good, token[:len(token)-2]) {
			t.Errorf("%q is the tenant %q", token, name)
		}
	})
}
