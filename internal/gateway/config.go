package gateway

import (
	"errors"
	"fmt"
	"time"

	"github.com/warmpath/warmpath/internal/api"
)

// Config is how the front treats clients.
type Config struct {
	// Headers adds X-Warmpath-Worker, -Match, -Policy and -Trust to answers. On, because seeing where a request went is
	// what people ask first; turn it off where workers' addresses must not be shown.
	Headers bool `yaml:"headers"`
	// Attempts is how many workers a request may be tried on before the first byte. 3: one that died, one that is dying
	// with it, and one more; beyond that the fleet is ill and more load does not heal it. 1 never retries.
	Attempts int `yaml:"attempts"`
	// RequestTimeout ends a request that takes longer, from its head to its last byte. 30 min, what the other gateways
	// use: long reasoning answers exist. 0 never ends one.
	RequestTimeout time.Duration `yaml:"request_timeout"`
	// ReadHeaderTimeout closes a connection whose request head does not arrive. 10 s is generous to slow links and
	// bounds what half-open connections cost.
	ReadHeaderTimeout time.Duration `yaml:"read_header_timeout"`
	// IdleTimeout closes a client's kept-alive connection without requests. 2 min, above the usual minute of load
	// balancers, so that it is they who close.
	IdleTimeout time.Duration `yaml:"idle_timeout"`
	// MaxHeaderBytes and MaxHeaders bound a request's head; beyond them the answer is 431. 64 KiB and 256 fields hold any
	// sane set of tracing and identity headers.
	MaxHeaderBytes int `yaml:"max_header_bytes"`
	MaxHeaders     int `yaml:"max_headers"`
	// HTTP2 serves clients that begin with HTTP/2 in clear text (prior knowledge), beside HTTP/1.1: meshes and gRPC-style clients. Off
	// by default: few clients do, and one connection then carries many requests past a balancer that counts connections.
	HTTP2 bool `yaml:"http2"`
	// SessionHeaders and SessionFields are where a request's session key is looked for, which policies with sessions go by: the
	// headers first, then the body, each in this order. They are the names that the peers use, in the order in which they do.
	// x-request-id and x-trace-id are left out, though some peers read them: where a proxy makes one for each request no session
	// would ever come back. Add them where they name conversations. Possible fields: session_params, user, session_id, user_id,
	// prompt_cache_key.
	SessionHeaders []string `yaml:"session_headers"`
	SessionFields  []string `yaml:"session_fields"`
	// TenantHeader says who asks, for fairness: set it where a proxy in front of this one puts it, as a client could put any. Empty:
	// the tenant is a hash of the request's API key.
	TenantHeader string `yaml:"tenant_header"`
	// DrainTimeout is how long requests in flight may go on after the signal to stop; then they are cut. 2 min: most
	// answers end within it, and orchestrators rarely wait longer.
	DrainTimeout time.Duration `yaml:"drain_timeout"`
	// DrainDelay is how long new connections are still taken after readiness began to say 503, so that load balancers
	// notice first. 0 suits a process without one in front.
	DrainDelay time.Duration `yaml:"drain_delay"`
}

// DefaultConfig shows headers, tries three workers and waits half an hour.
func DefaultConfig() Config {
	return Config{
		Headers:           true,
		Attempts:          3,
		RequestTimeout:    30 * time.Minute,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		MaxHeaders:        256,
		SessionHeaders: []string{"x-smg-routing-key", "x-sgl-routing-key", "x-aibrix-session-key", "x-semantic-cluster-id",
			"x-session-id", "x-user-id", "x-tenant-id", "x-correlation-id"},
		SessionFields: []string{"session_params", "user", "session_id", "user_id", "prompt_cache_key"},
		DrainTimeout:  2 * time.Minute,
	}
}

// Validate returns all problems of c, each beginning with the name of its field.
func (c Config) Validate() error {
	var problems []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	check(c.Attempts >= 1 && c.Attempts <= 16, "attempts: %d is outside 1..16", c.Attempts)
	check(c.RequestTimeout >= 0, "request_timeout: %v is negative", c.RequestTimeout)
	check(c.ReadHeaderTimeout > 0, "read_header_timeout: %v is not positive: half-open connections would stay for ever", c.ReadHeaderTimeout)
	check(c.IdleTimeout > 0, "idle_timeout: %v is not positive", c.IdleTimeout)
	check(c.MaxHeaderBytes >= 4096, "max_header_bytes: %d is below 4096", c.MaxHeaderBytes)
	check(c.MaxHeaders >= 16, "max_headers: %d is below 16", c.MaxHeaders)
	for _, name := range c.SessionHeaders {
		check(fieldName(name), "session_headers: %q is not the name of a header", name)
	}
	for _, name := range c.SessionFields {
		_, ok := api.SessionField(name)
		check(ok, "session_fields: %q is none of session_params, user, session_id, user_id, prompt_cache_key", name)
	}
	check(c.TenantHeader == "" || fieldName(c.TenantHeader), "tenant_header: %q is not the name of a header", c.TenantHeader)
	check(c.DrainTimeout >= 0, "drain_timeout: %v is negative", c.DrainTimeout)
	check(c.DrainDelay >= 0, "drain_delay: %v is negative", c.DrainDelay)
	return errors.Join(problems...)
}

// fieldName reports whether s can be the name of a header field: letters, digits and dashes, as all that are in use.
func fieldName(s string) bool {
	for _, c := range []byte(s) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_') {
			return false
		}
	}
	return s != ""
}
