package tenant

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
)

// Config is one tenant of the configuration file.
type Config struct {
	// Name names the tenant in metrics, logs, the queue and tenant_service_levels. It is required.
	Name string `yaml:"name" json:"name"`
	// KeysSHA256 are the SHA-256 digests of the tenant's API keys, in hex. The file never has the keys themselves. A
	// tenant without keys is known only by gateway.tenant_header or by a token.
	KeysSHA256 []string `yaml:"keys_sha256" json:"keys_sha256"`
	// RequestsPerSecond is how many requests the tenant may send each second, over a longer time. Burst is how many of
	// them may come at the same moment; 0 is a second's worth of requests, at least 1. 0 requests_per_second is no limit.
	RequestsPerSecond float64 `yaml:"requests_per_second" json:"requests_per_second"`
	Burst             int     `yaml:"burst" json:"burst"`
	// MaxConcurrent is how many requests of the tenant may be under way at the same time; 0 is no limit.
	MaxConcurrent int `yaml:"max_concurrent" json:"max_concurrent"`
	// TokensPerMinute is how many tokens, prompts and answers together, the tenant may use each minute; 0 is no limit.
	TokensPerMinute int `yaml:"tokens_per_minute" json:"tokens_per_minute"`
	// Models are the model names that the tenant may use. A star stands for any text: llama-*. Without names the tenant
	// may use all models.
	Models []string `yaml:"models" json:"models"`
	// DefaultModel is the model of a request that names none.
	DefaultModel string `yaml:"default_model" json:"default_model"`
	// Priority is the priority of the tenant's requests with queue.order priority. A request may lower its own priority,
	// but not raise it.
	Priority int `yaml:"priority" json:"priority"`
	// CacheSalt says whether the tenant shares cached prompts in the engines with other tenants: off (the default) shares
	// them, own keeps them apart.
	CacheSalt string `yaml:"cache_salt" json:"cache_salt"`
}

// The values of Config.CacheSalt; "" is SaltOff.
const (
	SaltOff = "off"
	SaltOwn = "own"
)

// maxName is the greatest length of a tenant's name, in bytes. The gateway replaces longer names by a digest.
const maxName = 256

// Validate returns all problems of c, each beginning with its key. A problem never contains the text of a key.
func (c *Config) Validate() error {
	var problems []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	check(c.Name != "", "name: the tenant has no name")
	check(len(c.Name) <= maxName, "name: %d bytes, at most %d", len(c.Name), maxName)
	check(c.Name != Other, "name: %s is the name that metrics use for the tenants without series of their own", Other)
	for i, key := range c.KeysSHA256 {
		_, err := digestOf(key)
		check(err == nil, "keys_sha256[%d]: %w", i, err)
	}
	check(c.RequestsPerSecond >= 0 && c.RequestsPerSecond <= maxRate, "requests_per_second: %v is outside 0..%d", c.RequestsPerSecond, maxRate)
	check(c.Burst >= 0 && c.Burst <= maxRate, "burst: %d is outside 0..%d", c.Burst, maxRate)
	check(c.Burst == 0 || c.RequestsPerSecond > 0, "burst: it has no effect without requests_per_second")
	check(c.MaxConcurrent >= 0, "max_concurrent: %d is negative", c.MaxConcurrent)
	check(c.TokensPerMinute >= 0, "tokens_per_minute: %d is negative", c.TokensPerMinute)
	for i, m := range c.Models {
		check(m != "", "models[%d]: the name is empty", i)
	}
	check(c.DefaultModel == "" || allows(c.Models, c.DefaultModel), "default_model: %q is none of the tenant's models", c.DefaultModel)
	check(c.Priority >= -maxPriority && c.Priority <= maxPriority, "priority: %d is outside -%d..%d", c.Priority, maxPriority, maxPriority)
	check(c.CacheSalt == "" || c.CacheSalt == SaltOff || c.CacheSalt == SaltOwn, "cache_salt: %q is none of off, own", c.CacheSalt)
	return errors.Join(problems...)
}

const (
	// maxRate bounds requests_per_second and burst. No gateway serves a million requests a second.
	maxRate = 1_000_000
	// maxPriority is the range that the queue knows.
	maxPriority = 1000
)

// burst returns the size of the bucket of requests.
func (c *Config) burst() float64 {
	if c.Burst > 0 {
		return float64(c.Burst)
	}
	return max(1, math.Ceil(c.RequestsPerSecond))
}

var errNoDigest = errors.New("not a SHA-256 digest in 64 hex digits; the key itself must not stand here. " +
	"This command prints the digest of a key: printf %s \"$KEY\" | sha256sum")

// KeySHA256 returns the digest of an API key, as Config.KeysSHA256 has it.
func KeySHA256(key string) string {
	d := sha256.Sum256([]byte(key))
	return hex.EncodeToString(d[:])
}

// digestOf reads a digest in hex. Its error does not contain the text, because the text may be a key.
func digestOf(text string) (digest, error) {
	var d digest
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) != len(d) {
		return d, errNoDigest
	}
	return digest(raw), nil
}
