package tenant

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	// pauseOfKeys is the shortest time between two readings of the issuer's keys. Tokens with invented keys must not
	// make the router ask more often.
	pauseOfKeys = 30 * time.Second
	// issuerTimeout bounds one reading of the keys, and maxKeySet its answers in bytes.
	issuerTimeout = 10 * time.Second
	maxKeySet     = 1 << 20
)

// Issuer finds the tenant that a token names. It is safe for concurrent use. A lookup does no I/O and waits for
// nothing: Run reads the issuer's keys.
type Issuer struct {
	cfg        TokenConfig
	algorithms []jose.SignatureAlgorithm
	keys       atomic.Pointer[jose.JSONWebKeySet] // nil until the issuer answered
	unknown    chan struct{}                      // capacity 1: a token has a key that is not known

	mu   sync.Mutex // guards seen
	seen map[digest]verified
}

// NewIssuer returns an Issuer that knows no keys yet. cfg has passed Validate.
func NewIssuer(cfg TokenConfig) *Issuer {
	t := &Issuer{cfg: cfg, unknown: make(chan struct{}, 1), seen: map[digest]verified{}}
	for _, name := range cfg.Algorithms {
		t.algorithms = append(t.algorithms, jose.SignatureAlgorithm(name))
	}
	return t
}

// Claim returns the name of the claim that names the tenant.
func (t *Issuer) Claim() string { return t.cfg.TenantClaim }

// Run reads the issuer's keys until ctx ends: at the start, every Refresh, and when a token has an unknown key. While
// the issuer does not answer, the keys that were read last stay in use.
func (t *Issuer) Run(ctx context.Context, client *http.Client, log *slog.Logger) error {
	for {
		keys, err := t.read(ctx, client)
		switch {
		case err == nil:
			t.keys.Store(keys)
			log.Debug("the issuer's keys were read", "issuer", t.cfg.Issuer, "keys", len(keys.Keys))
		case ctx.Err() == nil:
			log.Warn("the issuer's keys cannot be read; API keys still work, and so do the tokens of the keys that were read before", "issuer", t.cfg.Issuer, "error", err)
		}
		if !wait(ctx, pauseOfKeys, nil) {
			return nil
		}
		next := t.cfg.Refresh
		if err != nil {
			next = pauseOfKeys
		}
		if !wait(ctx, next-pauseOfKeys, t.unknown) {
			return nil
		}
	}
}

// ask makes Run read the keys again.
func (t *Issuer) ask() {
	select {
	case t.unknown <- struct{}{}:
	default:
	}
}

// wait returns true after d, or when early has a value. It returns false when ctx ends.
func wait(ctx context.Context, d time.Duration, early <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-early:
	}
	return true
}

// read asks the issuer for its keys [OpenID Connect Discovery 1.0 §4].
func (t *Issuer) read(ctx context.Context, client *http.Client) (*jose.JSONWebKeySet, error) {
	ctx, cancel := context.WithTimeout(ctx, issuerTimeout)
	defer cancel()
	var about struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := get(ctx, client, strings.TrimSuffix(t.cfg.Issuer, "/")+"/.well-known/openid-configuration", &about); err != nil {
		return nil, err
	}
	if about.Issuer != t.cfg.Issuer {
		return nil, fmt.Errorf("the issuer names itself %.200q: write this into jwt.issuer if it is the right one", about.Issuer)
	}
	if strings.HasPrefix(t.cfg.Issuer, "https://") && !strings.HasPrefix(about.Keys, "https://") {
		return nil, fmt.Errorf("the issuer's jwks_uri %.200q is not https", about.Keys)
	}
	keys := &jose.JSONWebKeySet{}
	if err := get(ctx, client, about.Keys, keys); err != nil {
		return nil, err
	}
	public := keys.Keys[:0]
	for _, k := range keys.Keys {
		if k.Valid() && k.IsPublic() {
			public = append(public, k)
		}
	}
	if keys.Keys = public; len(public) == 0 {
		return nil, fmt.Errorf("%s has no public key", about.Keys)
	}
	return keys, nil
}

func get(ctx context.Context, client *http.Client, url string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %d", url, resp.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxKeySet+1))
	if err != nil {
		return err
	}
	if len(body) > maxKeySet {
		return fmt.Errorf("%s answers with more than %d bytes", url, maxKeySet)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("%s: %w", url, err)
	}
	return nil
}
