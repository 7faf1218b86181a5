package tenant

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// TokenConfig says which tokens (JWT) name a tenant.
type TokenConfig struct {
	// Issuer is the URL of an OpenID Connect issuer, https://… It is also the claim iss of its tokens. Empty: tokens are
	// not accepted. The router reads the issuer's keys from ISSUER/.well-known/openid-configuration and the jwks_uri
	// that stands there. While the issuer does not answer, the keys that were read last stay valid, and API keys work.
	Issuer string `yaml:"issuer"`
	// Audience must be one of the token's claim aud. It is required: without it, a token for another service would do.
	Audience string `yaml:"audience"`
	// TenantClaim is the claim with the tenant's name; a tenant of this name must be configured.
	TenantClaim string `yaml:"tenant_claim"`
	// Algorithms are the signatures that are accepted. Only public-key algorithms are possible.
	Algorithms []string `yaml:"algorithms"`
	// ClockSkew is how much the clocks of the issuer and of this machine may differ.
	ClockSkew time.Duration `yaml:"clock_skew"`
	// Refresh is how often the issuer's keys are read again. A token with a new key makes the router read them earlier,
	// at most every 30 s.
	Refresh time.Duration `yaml:"refresh"`
}

// DefaultTokenConfig accepts no tokens.
func DefaultTokenConfig() TokenConfig {
	return TokenConfig{TenantClaim: "sub", Algorithms: []string{"RS256", "ES256"}, ClockSkew: time.Minute, Refresh: time.Hour}
}

// On reports whether tokens are accepted.
func (c TokenConfig) On() bool { return c.Issuer != "" }

// publicKey has the algorithms with public keys. HS256 and its kind are missing on purpose: a public key must never be
// taken for a shared secret.
var publicKey = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA}

// Validate returns all problems of c, each beginning with its key.
func (c TokenConfig) Validate() error {
	var problems []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	check(c.ClockSkew >= 0 && c.ClockSkew <= 10*time.Minute, "clock_skew: %v is outside 0s..10m", c.ClockSkew)
	check(c.Refresh >= time.Minute, "refresh: %v is below 1m", c.Refresh)
	if !c.On() {
		return errors.Join(problems...)
	}
	local := strings.HasPrefix(c.Issuer, "http://127.0.0.1:") || strings.HasPrefix(c.Issuer, "http://localhost:")
	check(strings.HasPrefix(c.Issuer, "https://") || local, "issuer: %q must begin with https://, because whoever changes the answers on the way could make tokens", c.Issuer)
	check(c.Audience != "", "audience: it is required, because the issuer also makes tokens for other services")
	check(c.TenantClaim != "", "tenant_claim: no claim would name the tenant")
	check(len(c.Algorithms) > 0, "algorithms: no token could be valid")
	for i, name := range c.Algorithms {
		known := false
		for _, a := range publicKey {
			known = known || string(a) == name
		}
		check(known, "algorithms[%d]: %q is none of %v", i, name, publicKey)
	}
	return errors.Join(problems...)
}

// verified has what the router needs of a token whose signature is good.
type verified struct {
	tenant        string
	before, until time.Time           // the token is valid from before to until
	key           *jose.JSONWebKeySet // the keys of which one made the signature
}

// maxSeen bounds the tokens that are remembered, about 150 bytes each. A client uses a token for minutes, and checking
// its signature takes 30 to 100 µs.
const maxSeen = 10_000

// maxToken is the greatest length of a token in bytes.
const maxToken = 8 << 10

// Errors of Issuer.Tenant.
var (
	// ErrNoToken says that a text is not a token of the issuer: it may be an API key.
	ErrNoToken = errors.New("not a token")
	// ErrNoKeys says that the issuer has not been reached yet.
	ErrNoKeys = errors.New("the issuer's keys are not known yet")
	// ErrInvalidToken says that a token is not valid. Its causes are the errors below.
	ErrInvalidToken = errors.New("the token is not valid")
	// ErrNoClaim says that a token of the issuer, with a good signature, has no text in the claim that names the tenant.
	ErrNoClaim = errors.New("the token names no tenant")
)

// Causes of ErrInvalidToken. They do not say what would be valid, and whoever holds a token can read its claims.
var (
	errAlgorithm  = fmt.Errorf("%w: its signature is of an algorithm (alg) that is not accepted here", ErrInvalidToken)
	errUnknownKey = fmt.Errorf("%w: the issuer has no key of this id (kid)", ErrInvalidToken)
	errSignature  = fmt.Errorf("%w: its signature is wrong, or the issuer's key is for something else", ErrInvalidToken)
	errIssuer     = fmt.Errorf("%w: it is of another issuer (iss)", ErrInvalidToken)
	errAudience   = fmt.Errorf("%w: it is for another audience (aud)", ErrInvalidToken)
	errEndless    = fmt.Errorf("%w: it has no end (exp)", ErrInvalidToken)
	errEarly      = fmt.Errorf("%w: its time has not begun (nbf)", ErrInvalidToken)
	errOver       = fmt.Errorf("%w: its time is over (exp)", ErrInvalidToken)
)

// Tenant returns the name of the tenant in a token that is valid now. A token that is not signed with a known key costs
// less than a lookup of its key: its signature is not checked, and the issuer is not asked more often than every 30 s.
func (t *Issuer) Tenant(token string, now time.Time) (string, error) {
	if len(token) > maxToken || strings.Count(token, ".") != 2 {
		return "", ErrNoToken
	}
	keys := t.keys.Load()
	d := sha256.Sum256([]byte(token))
	t.mu.Lock()
	v, ok := t.seen[d]
	t.mu.Unlock()
	if !ok || v.key != keys { // a key may have been withdrawn
		var err error
		if v, err = t.verify(token, keys); err != nil {
			return "", err
		}
		t.remember(d, v)
	}
	switch {
	case now.Before(v.before.Add(-t.cfg.ClockSkew)):
		return "", errEarly
	case now.After(v.until.Add(t.cfg.ClockSkew)):
		return "", errOver
	}
	return v.tenant, nil
}

// verify checks all of a token but its time.
func (t *Issuer) verify(token string, keys *jose.JSONWebKeySet) (v verified, err error) {
	parsed, err := jwt.ParseSigned(token, t.algorithms)
	if unexpected := new(jose.ErrUnexpectedSignatureAlgorithm); errors.As(err, &unexpected) {
		return v, errAlgorithm
	}
	if err != nil || len(parsed.Headers) != 1 {
		return v, ErrNoToken
	}
	if keys == nil {
		t.ask()
		return v, ErrNoKeys
	}
	candidates := keys.Key(parsed.Headers[0].KeyID)
	if parsed.Headers[0].KeyID == "" && len(keys.Keys) == 1 {
		candidates = keys.Keys // a token must name its key only if there are several [OpenID Connect Core 1.0 §10.1]
	}
	if len(candidates) == 0 {
		t.ask()
		return v, errUnknownKey
	}
	var claims jwt.Claims
	all := map[string]any{}
	for i := range candidates {
		k := &candidates[i]
		// An issuer's key may be for one algorithm, or for encryption.
		if k.Use != "" && k.Use != "sig" || k.Algorithm != "" && k.Algorithm != parsed.Headers[0].Algorithm {
			continue
		}
		if parsed.Claims(k.Key, &claims, &all) != nil {
			continue
		}
		switch {
		case claims.Issuer != t.cfg.Issuer:
			return v, errIssuer
		case !claims.Audience.Contains(t.cfg.Audience):
			return v, errAudience
		case claims.Expiry == nil:
			return v, errEndless
		}
		name, _ := all[t.cfg.TenantClaim].(string)
		if name == "" {
			return v, ErrNoClaim
		}
		v = verified{tenant: name, until: claims.Expiry.Time(), key: keys}
		if claims.NotBefore != nil {
			v.before = claims.NotBefore.Time()
		}
		return v, nil
	}
	return v, errSignature
}

func (t *Issuer) remember(d digest, v verified) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.seen) >= maxSeen {
		clear(t.seen) // the tokens in use are checked again
	}
	t.seen[d] = v
}
